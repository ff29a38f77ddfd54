-- Give an entry back after a transport fault, a verifier without a verdict, or a shutdown. The same
-- attempt is tried again; the claim does not count.
allow_when_full()
local kind, id, n, index = parse_entry(R.entry)
local key = kind == 'c' and cycle_key(cycle_of(R.entry)) or attempt_key(id, n)
local suffix = kind == 'v' and ':' .. index or ''
local v = kind == 'v' and 'v' or ''
local token = redis.call('HGET', key, v .. 'token' .. suffix)
if token ~= R.token then return { 'lost' } end
redis.call('HSET', key, v .. 'token' .. suffix, '')
drop_lease(R.entry)
redis.call('HINCRBY', key, v .. 'claims' .. suffix, -1)
local job = redis.call('HMGET', job_key(id), 'state', 'deadline_at', 'priority', 'lane', 'verify_on')
if kind ~= 'c' and TERMINAL[job[1]] then return { 'finished' } end
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
if kind ~= 'c' and NOW + R.delay_ms > tonumber(job[2]) then
  finish(id, job[1], 'escalated', 'deadline', R.detail)
  return { 'escalated', 'deadline' }
end
local queue, priority = 'verify', 5
if kind ~= 'c' then priority = priority_of(redis.call('HGET', key, 'mode'), job[3]) end
if kind == 'a' then
  queue = queue_of(redis.call('HGET', key, 'mode'))
  redis.call('HSET', key, 'state', 'queued')
  set_state(id, job[1], R.delay_ms > 0 and 'waiting' or 'queued',
    R.delay_ms > 0 and R.waiting_for or '')
  event('attempt', id, { attempt = tonumber(n), state = 'waiting', waiting_for = R.waiting_for,
    detail = R.detail })
end
local when = kind == 'c' and 'due_at' or v .. 'not_before' .. suffix
if kind == 'c' then redis.call('HSETNX', key, 'first_due_at', redis.call('HGET', key, 'due_at')) end
redis.call('HSET', key, when, stamp(NOW + R.delay_ms))
if kind == 'c' then
  await_verification(id, cycle_of(R.entry), job[5] or 'verify', job[4], NOW + R.delay_ms)
elseif kind == 'a' and job[4] and redis.call('HEXISTS', key, 'output') == 0 then
  offer(job[4], R.entry, redis.call('HGET', key, 'mode'), NOW + R.delay_ms)
else
  enqueue(R.entry, queue, priority, NOW + R.delay_ms)
end
return { 'requeued' }
