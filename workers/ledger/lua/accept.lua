-- Write a job and the outbox entry of its first attempt, or answer with the one already there.
-- With `look`, write nothing.
local key = job_key(R.id)
local seen = redis.call('HGET', key, 'digest')
if seen then return { seen == R.digest and 'seen' or 'conflict' } end
if R.look then return { 'new' } end
-- No field `tokens`: usage that was not reported is unknown, not 0.
redis.call('HSET', key, 'body', R.body, 'digest', R.digest, 'task_type', R.task_type,
  'name', R.name, 'memory', R.memory, 'attempt', 1, 'loop', 0, 'seconds', 0,
  'created_at', stamp(NOW), 'deadline_at', stamp(NOW + R.deadline_ms), 'priority', R.priority)
if given(R.on_done) then redis.call('HSET', key, 'on_done', R.on_done) end
if given(R.tenant) then redis.call('HSET', key, 'tenant', R.tenant) end
redis.call('HSET', attempt_key(R.id, 1), 'mode', 'initial', 'state', 'queued',
  'queued_at', stamp(NOW))
set_state(R.id, nil, 'queued')
redis.call('ZADD', P .. 'jobs', NOW, R.id)
if given(R.lane) then
  redis.call('HSET', key, 'lane', R.lane)
  offer(R.lane, attempt_entry(R.id, 1), 'initial', NOW)
  await_deadline(R.id, NOW + R.deadline_ms)
else
  hand_out(attempt_entry(R.id, 1), 'attempt', R.priority)
end
event('job', R.id, { state = 'queued', task_type = R.task_type, name = R.name,
  tenant = given(R.tenant) and R.tenant or nil })
return { 'accepted' }
