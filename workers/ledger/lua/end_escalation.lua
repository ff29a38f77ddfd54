-- End an escalation for a person: resolve it, cancel the job, or requeue the job in a new context.
local key = P .. 'escalation:' .. R.id
local e = redis.call('HMGET', key, 'state', 'job_id', 'entry')
if not e[1] then return { 'gone' } end
if e[1] ~= 'open' then return { 'finished', e[1] } end
local id = e[2]
local job = redis.call('HMGET', job_key(id), 'state', 'attempt', 'memory', 'tokens', 'seconds',
  'priority', 'lane', 'task_type', 'tenant', 'loop', 'past_loops', 'of_loop', 'item', 'money', 'pool')
local queued = ''
-- A quarantined entry leaves with its escalation. To requeue a finished job's outcome or a delayed
-- verification is to send it again; the job itself is not run again.
local entry = e[3]
local waits = entry and redis.call('ZSCORE', P .. 'outbox:quarantined', entry)
if R.how == 'requeued' and waits and string.find(entry, '^[cd]') then
  if not release(entry, tonumber(waits)) then return { 'gone', 'there is nothing left to send' } end
elseif R.how == 'requeued' then
  if not job[1] then return { 'gone', 'the job is no longer kept' } end
  if not TERMINAL[job[1]] then return { 'held' } end
  if tonumber(job[2]) ~= R.plan_number - 1 then return { 'stored' } end -- another requeue came first
  local n = R.plan_number
  if job[12] and not resume_item(id, job[12], job[13]) then
    return { 'gone', 'its item in the loop ' .. job[12] .. ' has moved on: reset the item' }
  end
  raise_schema(id)
  -- The memory of a job or an item is cleared; one that is shared with other jobs is not.
  if job[12] or job[3] == 'memory:job:' .. id then redis.call('DEL', P .. job[3]) end
  redis.call('HSET', job_key(id), 'attempt', n, 'spent_tokens', job[4] or 0, 'spent_seconds', job[5], 'spent_money', job[14] or 0,
    'repair_seconds', 0, 'loop', 0, 'past_loops', math.max(job[10], job[11] or 0), 'reason', '',
    'detail', '', 'finished_at', '', 'deadline_at', stamp(NOW + R.deadline_ms))
  redis.call('HDEL', job_key(id), 'charged:tokens', 'charged:seconds', 'charged:money')
  local runner = runner_of(redis.call('HGET', attempt_key(id, 1), 'runner'), R.fallback)
  redis.call('HSET', attempt_key(id, n), 'mode', 'initial', 'plan', R.plan, 'state', 'queued',
    'queued_at', stamp(NOW), 'runner', runner)
  keep(id)
  set_state(id, job[1], 'queued')
  if job[7] then
    offer(job[7], attempt_entry(id, n), 'initial', NOW)
    await_deadline(id, NOW + R.deadline_ms)
  else
    local queue = queue_of('initial', job[15])
    local gates = attempt_gates(queue, job[8], job[9], provider_of(runner))
    add_item(gates, id, job[12], true)
    if make_due(attempt_entry(id, n), queue, job[6], gates) then
      queued = publication(attempt_entry(id, n), { queue = queue, priority = job[6] })
    end
  end
  event('job', id, { state = 'queued', task_type = job[8], tenant = job[9] or nil, requeued = true })
elseif R.how == 'cancelled' and job[1] == 'escalated' then
  set_state(id, 'escalated', 'cancelled')
  redis.call('HSET', job_key(id), 'reason', 'cancelled', 'detail', R.note)
  event('job', id, { state = 'cancelled', reason = 'cancelled', task_type = job[8],
    tenant = job[9] or nil, attempts = tonumber(job[2]), tokens = tonumber(job[4]) or cjson.null,
    first_try = false })
end
if waits then leave_quarantine(entry) end
end_escalation(R.id, R.how, R.by, R.note)
return { 'ended', queued }
