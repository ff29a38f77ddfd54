-- End a cycle by its delayed verification; the score counts. The job's state is never changed.
local key = cycle_key(R.cycle)
local cycle = redis.call('HMGET', key, 'status', 'token', 'job_id')
if cycle[2] ~= R.token then return { 'lost' } end
if cycle[1] ~= 'pending_delayed_verification' then return { 'finished' } end
redis.call('HSET', key, 'score', given(R.score) and R.score or '', 'token', '')
if R.valid then redis.call('HSET', key, 'delayed_valid', '1') end
close_cycle(cycle[3], R.cycle, R.status, R.reason)
return { 'settled' }
