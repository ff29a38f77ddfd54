-- Give an entry back after a transport fault, a verifier without a verdict, or a shutdown. The same
-- attempt is tried again; the claim does not count.
allow_when_full()
local kind, id, n, index = parse_entry(R.entry)
local key = kind == 'c' and cycle_key(cycle_of(R.entry)) or attempt_key(id, n)
local suffix = kind == 'v' and ':' .. index or ''
local v = kind == 'v' and 'v' or ''
local found = redis.call('HMGET', key, v .. 'token' .. suffix, 'requeued_by', 'released')
-- A repeated call, whose first answer was lost.
if found[2] == R.token then return { 'requeued', '', found[3] or '', '' } end
if found[1] ~= R.token then return { 'lost' } end
redis.call('HSET', key, v .. 'token' .. suffix, '', 'requeued_by', R.token)
local of_loop = kind == 'a' and redis.call('HGET', job_key(id), 'of_loop')
local free = R.unasked or given(R.fault) and not R.fault.maybe_served
if of_loop then charge_unanswered(of_loop, R.entry, free, R.metered) end
-- A refused call waits for its provider, at the front; any other one for its own back-off.
local provider, opens_at
local unpaid = given(R.fault) and given(R.fault.credits)
-- A provider that refuses charges nothing; one that did not answer may have worked.
if not R.unasked and (not given(R.fault) or given(R.fault.maybe_served)) then count_unanswered(R.entry) end
if given(R.fault) then
  local retry_after = given(R.fault.retry_after_ms) and R.fault.retry_after_ms or nil
  if unpaid then
    provider, opens_at = refused_unpaid(R.entry, retry_after)
  elseif R.fault.refused then
    provider, opens_at = refused(R.entry, retry_after)
  else
    opens_at = faulted(R.entry, retry_after)
  end
end
drop_lease(R.entry)
redis.call('HINCRBY', key, v .. 'claims' .. suffix, -1)
-- It has proved nothing: an entry that was tried alone is tried alone again.
redis.call('HSET', key, v .. 'shared' .. suffix, '1')
local job = redis.call('HMGET', job_key(id), 'state', 'deadline_at', 'priority', 'lane', 'verify_on',
  'pool')
if kind ~= 'c' and TERMINAL[job[1]] then
  release_ended(id, R.entry)
  return { 'finished' }
end
if given(R.counter) then
  local count = redis.call('HINCRBY', key, R.counter .. suffix, 1)
  redis.call('HSET', key, R.counter .. '_last' .. suffix, R.detail)
  if given(R.max) and count >= R.max then
    if kind == 'c' then
      close_cycle(id, cycle_of(R.entry), 'escalated', R.reason)
    else
      finish(id, job[1], 'escalated', R.reason, R.detail)
    end
    return { 'escalated', R.reason }
  end
end
local due = NOW + R.delay_ms
if kind ~= 'c' then
  -- Counted as nothing: a store or a repository is away, and only this says so.
  if not given(R.counter) and not given(R.fault) then
    redis.call('HSET', key, 'held_up', R.detail, 'held_until', stamp(due))
  end
  -- The attempt is tried until the deadline, and claiming it then escalates the job.
  if tonumber(job[2]) <= NOW then
    finish(id, job[1], 'escalated', 'deadline', deadline_passed(R.detail))
    return { 'escalated', 'deadline' }
  end
  due = math.min(due, tonumber(job[2]))
end
local delayed = due > NOW
local mode = kind ~= 'c' and redis.call('HGET', key, 'mode')
local waits_for = provider and (unpaid and 'credits' or 'provider') or 'delay'
if kind == 'a' then
  redis.call('HSET', key, 'state', 'queued')
  set_state(id, job[1], delayed and 'waiting' or 'queued', delayed and waits_for or '')
  event('attempt', id, { attempt = tonumber(n), state = 'waiting', waiting_for = waits_for,
    waiting_behind = provider and 'provider:' .. provider or nil, detail = R.detail })
end
if kind == 'c' then redis.call('HSETNX', key, 'first_due_at', redis.call('HGET', key, 'due_at')) end
if provider then
  redis.call('HDEL', key, 'not_before')
  park(R.entry, 'provider:' .. provider, waits_for, true)
  local opens_in = stamp(math.max(0, opens_at - NOW))
  return { 'requeued', opens_in, keep_released(key, found[3]), opens_in }
end
redis.call('HSET', key, kind == 'c' and 'due_at' or v .. 'not_before' .. suffix, stamp(due))
if kind == 'c' then
  await_verification(id, cycle_of(R.entry), job[5] or 'verify', job[4], due)
elseif kind == 'a' and job[4] and redis.call('HEXISTS', key, 'output') == 0 then
  offer(job[4], R.entry, mode, due)
else
  enqueue(R.entry, kind == 'a' and queue_of(mode, job[6]) or 'verify', priority_of(mode, job[3]), due)
  -- An item that backs off for long leaves its slot to others.
  if of_loop and due - NOW > 5000 then leave_slot(id, of_loop) end
end
local opens_in = opens_at and opens_at > NOW and stamp(opens_at - NOW) or ''
return { 'requeued', stamp(due - NOW), keep_released(key, found[3]), opens_in }
