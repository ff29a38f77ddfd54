-- Write the verdict, the memory's count, the cycle, the job's next state and the next attempt's
-- entry in one step, so that nothing is recorded without its consequences.
local key = attempt_key(R.id, R.n)
local attempt = redis.call('HMGET', key, 'token', 'state', 'settled_by', 'runner', 'provider',
  'released')
-- The answer names the queue of the next attempt if there is one to publish: not if it is parked or
-- the job has ended.
local function settled(freed)
  local following = given(R.next) and attempt_entry(R.id, R.next.number)
  local e = following and not is_parked(following) and read_entry(following)
  return { 'settled', e and e.queue or '', freed }
end
if attempt[2] == 'settled' then return attempt[3] == R.token and settled(attempt[6] or '') or { 'lost' } end
if attempt[1] ~= R.token then return { 'lost' } end
local entry = attempt_entry(R.id, R.n)
local jkey = job_key(R.id)
local job = redis.call('HMGET', jkey, 'state', 'best', 'best_score', 'best_success', 'memory',
  'priority', 'lane', 'tenant', 'task_type', 'caller', 'of_loop', 'pool')
redis.call('HSET', key, 'state', 'settled', 'settled_by', R.token, 'token', '',
  'verdict', R.verdict, 'settled_at', stamp(NOW))
raise_schema(R.id)
-- An immediate retry keeps the slot of its tenant, unless there are too many: settling after slow
-- verifications takes one that may not be free.
local retried = given(R.next) and R.next.delay_ms <= 0 and not job[7] and not TERMINAL[job[1]]
if retried and job[8] and (quota_capacity(job[8]) or 0) >= 0 then
  local next_entry = attempt_entry(R.id, R.next.number)
  redis.call('ZADD', active_key('quota:' .. job[8]), NOW + RESERVED_MS, next_entry)
  redis.call('ZREM', active_key('quota:' .. job[8]), entry)
end
answered(entry, attempt[5]) -- an error without an answer is the provider's answer, too
if job[11] then charge_unanswered(job[11], entry, R.unasked, R.metered) end
end_lease(entry, attempt[5], job[8], job[7])
if job[11] then free_merge(entry) end

-- Best attempt = (success, score, earliest).
local score = given(R.score) and R.score or -1
local better = not job[2]
if not better then
  local won = job[4] == '1'
  better = (R.success and not won) or (R.success == won and score > tonumber(job[3]))
end
if better then
  redis.call('HSET', jkey, 'best', R.n, 'best_score', score, 'best_success', R.success and 1 or 0)
end

-- Each claim reads the whole memory, so a full one drops a signature: of a few taken at random, the
-- least frequent.
local function remember(memory, signature)
  if redis.call('HINCRBY', memory, signature, 1) > 1 then return end
  if redis.call('HLEN', memory) <= (R.memory_cap or 1000) then return end
  local some = redis.call('HRANDFIELD', memory, 16, 'WITHVALUES')
  local least, count
  for i = 1, #some, 2 do
    local name, times = some[i], tonumber(some[i + 1])
    local less = not count or times < count or (times == count and name < least)
    if name ~= signature and less then least, count = name, times end
  end
  if least then redis.call('HDEL', memory, least) end
end
for _, signature in ipairs(R.signatures) do remember(P .. job[5], signature) end
if given(R.remedy) then
  local remedy = P .. 'remedy:' .. R.remedy.coarse
  redis.call('HINCRBY', remedy, R.remedy.technique .. ':tried', 1)
  if R.remedy.worked then redis.call('HINCRBY', remedy, R.remedy.technique .. ':worked', 1) end
  expire(remedy, 7776000000)
end
local data = given(R.facts) and R.facts or {}
data.attempt, data.state, data.score, data.success = R.n, 'settled', R.score, R.success
-- cjson writes 14 digits: one more would lift a score just below 70 to 70 in front of readers.
local written = given(R.score) and tonumber(string.format('%.14g', R.score))
if written and written > R.score then data.score = written - 1e-12 end
data.kind, data.next = R.kind, given(R.next) and R.next.mode or nil
data.tenant = job[8] or nil
event('attempt', R.id, data)
if given(R.session) then
  local session = P .. 'session:' .. job[7]
  redis.call('ZADD', session, NOW, R.session.note)
  redis.call('ZREMRANGEBYSCORE', session, '-inf', NOW - R.session.window_ms)
  expire(session, R.session.window_ms)
end
if TERMINAL[job[1]] then
  retain(R.id) -- so that what was just counted expires with the job
  release_ended(R.id, entry)
  if job[10] then -- another message reports the end to the caller
    redis.call('HSET', key, 'settled_by', '')
    return { 'lost' }
  end
  return settled(keep_released(key, attempt[6]))
end

-- The mandatory retry has been processed, whatever its score.
if given(R.cycle_done) then
  local cycle = cycle_key(R.cycle_done)
  if redis.call('HGET', cycle, 'status') == 'pending_immediate_retry' then
    redis.call('HSET', cycle, 'status', 'pending_delayed_verification', 'immediate_at', stamp(NOW),
      'immediate_attempt_id', R.id .. '-' .. int(R.n),
      'due_at', stamp(NOW + R.verify_after_ms))
    -- To ask again takes as long as an attempt.
    local place = R.verify_on == 'attempt' and queue_of('initial', job[12]) or R.verify_on
    redis.call('HSET', jkey, 'verify_on', place)
    await_verification(R.id, R.cycle_done, place, job[7], NOW + R.verify_after_ms)
    event('cycle', R.id, { cycle = R.cycle_done, status = 'pending_delayed_verification' })
  end
end
if given(R.cycle) then open_cycle(R.id, R.n, R.cycle, given(R.finish) and R.finish.reason or '') end
if given(R.next) then
  local n, runner = R.next, runner_of(attempt[4], R.next.fallback)
  redis.call('HSET', attempt_key(R.id, n.number), 'mode', n.mode, 'plan', n.plan,
    'state', 'queued', 'queued_at', stamp(NOW), 'not_before', stamp(NOW + n.delay_ms),
    'runner', runner)
  redis.call('HSET', jkey, 'attempt', n.number)
  set_state(R.id, job[1], n.delay_ms > 0 and 'waiting' or 'queued', n.delay_ms > 0 and 'delay')
  local next_entry, queue = attempt_entry(R.id, n.number), queue_of(n.mode, job[12])
  if job[7] then
    offer(job[7], next_entry, n.mode, NOW + n.delay_ms)
  elseif n.delay_ms > 0 then
    enqueue(next_entry, queue, n.priority, NOW + n.delay_ms)
    if job[11] and n.delay_ms > 5000 then leave_slot(R.id, job[11]) end
  elseif not make_due(next_entry, queue, n.priority,
    add_item(attempt_gates(queue, job[9], job[8], provider_of(runner)), R.id, job[11], true)) then
    free_slots(next_entry, nil, job[8]) -- its tenant's, for others
  end
else
  finish(R.id, job[1], R.finish.state, R.finish.reason, R.finish.detail,
    given(R.group_signature) and { signature = R.group_signature, kind = given(R.kind) and R.kind or '' } or nil)
end
return settled(keep_released(key, attempt[6]))
