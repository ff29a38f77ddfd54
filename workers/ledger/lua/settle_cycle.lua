-- End a cycle by its delayed verification; the score counts. The job's state is never changed.
local key = cycle_key(R.cycle)
local cycle = redis.call('HMGET', key, 'status', 'token', 'job_id', 'settled_by')
-- The same again: its answer was lost on the way.
if cycle[4] == R.token and cycle[1] == R.status then return { 'settled' } end
if cycle[2] ~= R.token then return { 'lost' } end
if cycle[1] ~= 'pending_delayed_verification' then return { 'finished' } end
redis.call('HSET', key, 'score', given(R.score) and R.score or '', 'token', '',
  'settled_by', R.token, 'delayed_valid', '1')
close_cycle(cycle[3], R.cycle, R.status, R.reason, given(R.detail) and R.detail or nil)
return { 'settled' }
