-- Write a job and the outbox entry of its first attempt, or answer with the one already there.
-- With `look`, write nothing. The answer names the job: a key that is used again after its job was
-- deleted may belong to a job with another id.
-- The attempt of a `report` was made before: its answer is stored in the same step.
local function bring(id)
  local entry, key, report = attempt_entry(id, 1), attempt_key(id, 1), R.report
  local attempt = redis.call('HMGET', key, 'state', 'output_by')
  local state = redis.call('HGET', job_key(id), 'state')
  if attempt[1] ~= 'queued' or attempt[2] or TERMINAL[state] then return end
  -- Nothing is left to run, so no pause or quota stops it.
  take_lease(entry, R.lease_ms, attempt_gates(queue_of('initial'), R.task_type, given(R.tenant) and R.tenant),
    'state', 'running', 'token', report.token, 'worker', report.worker, 'claims', 1,
    'claimed_at', stamp(NOW), 'hard_at', stamp(NOW + R.hard_ms), 'started_at', stamp(NOW))
  redis.call('ZREM', P .. 'lane:' .. R.lane, entry)
  keep_answer(id, 1, 'initial', report)
  set_state(id, state, 'running')
  event('attempt', id, { attempt = 1, state = 'running', mode = 'initial', task_type = R.task_type,
    tenant = given(R.tenant) and R.tenant or nil, waited = 0 })
end
if given(R.first) and (redis.call('HGET', P .. 'partitions', 'first') or '1') ~= int(R.first) then
  return { 'spread', R.id } -- by a process that set the number before the first job
end
local answer, id = job_of_key(R.id)
answer = answer or R.keyed and reserved_elsewhere(R.id)
if answer then
  if answer[1] == 'seen' and given(R.report) then bring(answer[2]) end
  return answer
end
if R.look then return { 'new', R.id } end
if given(R.reserved_at) and NOW - tonumber(R.reserved_at) > R.reserved_ms then return { 'late', R.id } end
if R.keyed and given(R.instead) then redis.call('DEL', reservation_key(R.id)) end
id = id and next_incarnation(id) or R.id
local key = job_key(id)
-- No field `tokens`: usage that was not reported is unknown, not 0.
redis.call('HSET', key, 'body', R.body, 'digest', R.digest, 'task_type', R.task_type,
  'name', R.name, 'memory', given(R.memory) and R.memory or 'memory:job:' .. id, 'attempt', 1,
  'loop', 0, 'seconds', 0, 'schema', 1, 'created_at', stamp(NOW),
  'deadline_at', stamp(NOW + R.deadline_ms), 'deadline_ms', R.deadline_ms, 'priority', R.priority)
raise_schema(id)
if given(R.on_done) then redis.call('HSET', key, 'on_done', R.on_done) end
if given(R.tenant) then redis.call('HSET', key, 'tenant', R.tenant) end
if given(R.pool) then redis.call('HSET', key, 'pool', R.pool) end
if given(R.caller) then redis.call('HSET', key, 'caller', 1) end
redis.call('HSET', attempt_key(id, 1), 'mode', 'initial', 'state', 'queued',
  'queued_at', stamp(NOW), 'runner', R.runner)
set_state(id, nil, 'queued')
redis.call('ZADD', P .. 'jobs', NOW, id)
local due = false
if given(R.lane) then
  redis.call('HSET', key, 'lane', R.lane)
  offer(R.lane, attempt_entry(id, 1), 'initial', NOW)
  await_deadline(id, NOW + R.deadline_ms)
else
  local queue = queue_of('initial', R.pool)
  local gates = attempt_gates(queue, R.task_type, given(R.tenant) and R.tenant, provider_of(R.runner))
  due = make_due(attempt_entry(id, 1), queue, R.priority, gates)
end
event('job', id, { state = 'queued', task_type = R.task_type, name = R.name,
  tenant = given(R.tenant) and R.tenant or nil })
if given(R.report) then bring(id) end
return { 'accepted', id, due and 'due' or '' }
