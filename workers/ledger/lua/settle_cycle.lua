-- End a cycle with the score of its delayed verification. The job's state never changes.
local key = cycle_key(R.cycle)
local cycle = redis.call('HMGET', key, 'status', 'token', 'job_id', 'settled_by', 'checks',
  'provider', 'report')
-- A repeated call, whose first answer was lost.
if cycle[4] == R.token and cycle[1] == R.status and not other_report(cycle[7]) then
  return { 'settled' }
end
if cycle[2] ~= R.token then return { 'lost' } end
if cycle[1] ~= 'pending_delayed_verification' then return { 'finished' } end
redis.call('HSET', key, 'score', given(R.score) and R.score or '', 'token', '',
  'settled_by', R.token, 'delayed_valid', '1')
if given(R.report) then redis.call('HSET', key, 'report', R.report) end
-- A refuted answer ranks with the score that refuted it, so that an attempt after a requeue wins.
local job = job_key(cycle[3])
if R.status == 'escalated' and given(R.score) and redis.call('HGET', job, 'best') == cycle[5] then
  redis.call('HSET', job, 'best_score', R.score, 'best_success', 0)
end
answered('c:' .. R.cycle, cycle[6]) -- an error without an answer is the provider's answer, too
close_cycle(cycle[3], R.cycle, R.status, R.reason, given(R.detail) and R.detail or nil)
return { 'settled' }
