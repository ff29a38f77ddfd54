-- Shared by the scripts, after prelude.lua: the quarantine of entries that cannot be sent or read.
-- A quarantined entry has left the outbox, so it hurts nobody else. It has an open escalation, and a
-- person sends it again, or drops it; either ends the escalation.

-- Ends the record of an escalation for a person.
local function end_escalation(eid, how, by, note)
  local key = P .. 'escalation:' .. eid
  local e = redis.call('HMGET', key, 'state', 'job_id', 'signature', 'task_type', 'tenant')
  if e[1] ~= 'open' then return end
  redis.call('HSET', key, 'state', how, 'ended_at', stamp(NOW), 'ended_by', by, 'note', note)
  expire(key, R.cycle_retention_ms or 34560000000)
  keep_incarnation(e[2])
  redis.call('ZADD', P .. 'escalations:ended', NOW, eid)
  leave_group(eid, e[3], e[4], e[5])
  -- What a loop healed by itself needs nobody: unless an alert was sent already, none is.
  local group = P .. 'group:' .. e[3]
  if by == 'auto_heal' and tonumber(redis.call('HGET', group, 'since_alert') or '0') > 0 then
    redis.call('HINCRBY', group, 'since_alert', -1)
  end
  event('escalation', e[2], { escalation = eid, state = how, signature = e[3], by = by })
end

-- Parses an entry, unless one of its records has another type: then it names nothing.
local function parse_intact(entry)
  local kind, id, n, index = parse_entry(entry)
  local cycle = kind == 'c' and cycle_key(cycle_of(entry))
  for _, key in ipairs(kind and { job_key(id), cycle or attempt_key(id, n) } or {}) do
    local found = redis.call('TYPE', key).ok
    if found ~= 'hash' and found ~= 'none' then return nil end
  end
  return kind, id, n, index
end

-- Whether an entry still matters. One that names nothing does: nobody knows what is missing.
local function needed(entry)
  local kind, id = parse_intact(entry)
  if not kind or kind == 'd' then return true end
  if kind == 'l' then return redis.call('EXISTS', loop_key(loop_of(entry))) == 1 end
  if kind == 'c' then
    return redis.call('HGET', cycle_key(cycle_of(entry)), 'status') == 'pending_delayed_verification'
  end
  local state = redis.call('HGET', job_key(id), 'state')
  return state and not TERMINAL[state]
end

-- Escalates what an entry stands for and returns the id of the escalation: an attempt or a verification
-- ends its job, a delayed verification ends its cycle, and a finished job stays as it is.
local function escalate_entry(entry, reason, detail)
  local kind, id, n = parse_intact(entry)
  if kind == 'c' then return close_cycle(id, cycle_of(entry), 'escalated', reason, detail) end
  if kind == 'a' or kind == 'v' then
    return finish(id, redis.call('HGET', job_key(id), 'state'), 'escalated', reason, detail)
  end
  local name = kind and id .. ':' .. n .. (kind == 'l' and ':hint' or ':done')
    or string.match(P, '{(.-)}') .. '-entry-' .. string.sub(string.gsub(entry, '%W', '_'), 1, 60)
  local signature, eid = escalate(name, id or '', n or 0, nil, reason, detail)
  if signature then event('escalation', id or '', { escalation = eid, state = 'open', signature = signature }) end
  return eid
end

local function leave_quarantine(entry)
  redis.call('ZREM', P .. 'outbox:quarantined', entry)
  redis.call('HDEL', P .. 'outbox:quarantine', entry)
end

-- A text that anything can show: a name or record that cannot be read may hold any bytes.
local function printable(text) return brief((string.gsub(text, '[^\32-\126]', '?'))) end

local function quarantine(entry, reason, error, failures)
  local e, row = read_entry(entry)
  local kind, id = parse_intact(entry)
  local name = printable(entry)
  local matters = needed(entry)
  drop_entry(entry)
  if not matters then return end
  local eid = escalate_entry(entry, reason, name .. ': ' .. error)
  if kind == 'a' then report_to_caller(id) end
  redis.call('HSET', P .. 'escalation:' .. eid, 'entry', name)
  redis.call('ZADD', P .. 'outbox:quarantined', NOW, name)
  redis.call('HSET', P .. 'outbox:quarantine', name, cjson.encode({
    queue = e and e.queue, row = row and printable(row), failures = failures, error = brief(error),
    at = NOW, reason = reason, escalation = eid, job = id,
    tenant = id and redis.call('HGET', job_key(id), 'tenant') or nil }))
  -- Everything that can grow has a cap; the escalation of the oldest stays.
  if redis.call('ZCARD', P .. 'outbox:quarantined') > (R.escalations_cap or 100000) then
    leave_quarantine(redis.call('ZRANGE', P .. 'outbox:quarantined', 0, 0)[1])
  end
end

-- Puts a job that its quarantined attempt or verification ended back to where it waited. The time in
-- quarantine does not count against its deadline.
local function reopen_job(id, n, since)
  local key = job_key(id)
  local job = redis.call('HMGET', key, 'state', 'attempt', 'deadline_at', 'task_type', 'tenant',
    'of_loop', 'item')
  if job[1] ~= 'escalated' or job[2] ~= n then return false end
  if job[6] and not resume_item(id, job[6], job[7]) then return false end
  local verifying = redis.call('HGET', attempt_key(id, n), 'state') == 'verifying'
  redis.call('HSET', key, 'reason', '', 'detail', '', 'finished_at', '',
    'deadline_at', stamp(tonumber(job[3]) + NOW - since))
  keep(id)
  set_state(id, job[1], verifying and 'running' or 'queued')
  event('job', id, { state = 'queued', task_type = job[4], tenant = job[5] or nil, requeued = true })
  return true
end

local function reopen_cycle(id, cycle)
  local key = cycle_key(cycle)
  if redis.call('HGET', key, 'status') ~= 'escalated' then return false end
  redis.call('HSET', key, 'status', 'pending_delayed_verification', 'due_at', stamp(NOW), 'first_due_at', stamp(NOW))
  redis.call('HDEL', key, 'ended_at', 'reason')
  redis.call('PERSIST', key)
  local cycles = open_cycles(id)
  cycles[#cycles + 1] = cycle
  save_open_cycles(id, cycles)
  keep(id)
  event('cycle', id, { cycle = cycle, status = 'pending_delayed_verification' })
  return true
end

-- Puts a quarantined entry back into the outbox; the sweep publishes it. Returns false if there is
-- nothing left to send: the name means nothing, or the job is gone or was requeued.
local function release(entry, since)
  local kind, id, n = parse_entry(entry)
  if not kind then return false end
  if kind == 'l' then
    if not needed(entry) then return false end
    enqueue(entry, 'loop', 5, NOW)
    return true
  end
  local job = redis.call('HMGET', job_key(id), 'state', 'priority', 'on_done', 'verify_on', 'lane',
    'pool')
  if not job[1] then return false end
  if kind == 'd' then
    if not job[3] or not TERMINAL[job[1]] then return false end
    enqueue(entry, job[3], 5, NOW)
  elseif kind == 'c' then
    if not reopen_cycle(id, cycle_of(entry)) then return false end
    await_verification(id, cycle_of(entry), job[4] or 'verify', job[5], NOW)
  else
    if not reopen_job(id, n, since) then return false end
    local mode = redis.call('HGET', attempt_key(id, n), 'mode')
    local priority = priority_of(mode, job[2])
    if kind == 'a' then
      enqueue(entry, queue_of(mode, job[6]), priority, NOW)
    else -- the end of the job ended the other verifications, too
      each_pending(id, n, function(each) enqueue(each, 'verify', priority, NOW) end)
    end
  end
  return true
end
