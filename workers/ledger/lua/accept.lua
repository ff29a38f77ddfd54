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
local due = store_job(id, R)
if given(R.report) then bring(id) end
return { 'accepted', id, due and 'due' or '' }
