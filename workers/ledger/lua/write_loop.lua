-- Write a plan, an admission or a person's change, if nothing that it was made from has changed.
-- `changes`: by loop; `admit`: items that get a slot. Both name what they expect to find.
local function is_stale()
  for loop, version in pairs(R.expect) do
    if redis.call('HGET', loop_key(loop), 'version') ~= int(version) then return true end
  end
  for loop, change in pairs(R.changes) do
    for item, records in pairs(change.items) do
      local found = redis.call('HGET', loop_key(loop, 'items'), item)
      if (found or '') ~= records[1] then return true end
    end
    local decision = given(change.overrules) and redis.call('HGET', P .. 'loops:decisions', change.overrules)
    if decision and given(cjson.decode(decision).overruled_by) then return true end
  end
  if #R.admit == 0 then return false end
  if (redis.call('GET', P .. 'loops:epoch') or '0') ~= R.epoch then return true end
  for _, each in ipairs(R.admit) do
    -- One that this plan makes ready is expected as planned.
    local planned = R.changes[each.loop] and R.changes[each.loop].items[each.item]
    local found = planned and planned[2] or redis.call('HGET', loop_key(each.loop, 'items'), each.item)
    if given(each.job) and found ~= each.old then return true end
  end
  return false
end

local keyed = given(R.key) and loop_key(R.loop, 'key') .. ':' .. R.key
if keyed then
  local digest = redis.call('GET', keyed)
  if digest then return { digest == R.digest and 'seen' or 'conflict' } end
end
local first = redis.call('HMGET', loop_key(R.loop), 'state', 'written_by')
if not first[1] then return { 'gone' } end
if first[2] == R.token then return { 'written', redis.call('HGET', loop_key(R.loop), 'released') or '' } end
if is_stale() then return { 'stale' } end

-- A person has dealt with the failure of an item: its escalation ends.
local function resolve_run(id, note)
  -- The escalation outlives its job: without the job, the attempt that led to it is not known.
  local n = tonumber(redis.call('HGET', job_key(id), 'attempt') or '')
  for attempt = n or 1, n or 100 do
    for times = 1, 10 do
      end_escalation(id .. ':' .. attempt .. (times > 1 and '.' .. times or ''), 'resolved', R.by, note)
    end
  end
  -- A worker that goes on although the job was cancelled loses its lease.
  if n then redis.call('HSET', attempt_key(id, n), 'token', '') end
end

-- Whom an escalation tells; other runners only go on with the work. See policies/loops/healing.py.
local TELLS = { ['a person'] = true, ['the orchestrator'] = true }

local function give_off(loop, tenant, item, run, events)
  redis.call('HSET', loop_key(loop, 'emitted'), item, int(run) .. '|' .. table.concat(events, '\n'))
  for _, name in ipairs(events) do
    add_emitter(tenant .. '/' .. name, loop .. '/' .. item)
    note_in_log(loop, item .. ' gave off ' .. name, 'planner')
    touch_waiting(tenant, 'event:' .. name)
  end
end

-- What a change says about how items go together with others.
local function coordinate(loop, change, tenant)
  for item, each in pairs(change.emit) do give_off(loop, tenant, item, each.run, each.events) end
  for item, order in pairs(change.orders) do
    if order == '' then
      redis.call('HDEL', loop_key(loop, 'orders'), item)
    else
      redis.call('HSET', loop_key(loop, 'orders'), item, order)
    end
    redis.call('INCR', P .. 'loops:epoch')
  end
  for item, files in pairs(change.seen) do
    if files.seen == '' then
      redis.call('HDEL', loop_key(loop, 'seen'), item)
    else
      redis.call('HSET', loop_key(loop, 'seen'), item, files.seen)
    end
    local record = read_item(loop, item)
    local text = record and redis.call('HGET', P .. 'loops:locks', record.job)
    if text and #files.all > 0 then
      local lock = cjson.decode(text)
      lock.files = files.all
      redis.call('HSET', P .. 'loops:locks', record.job, cjson.encode(lock))
    elseif text then
      redis.call('HDEL', P .. 'loops:locks', record.job)
    end
  end
  if given(change.declared) then declare(loop, change.declared) end
  if given(change.urgent) then
    redis.call('DEL', loop_key(loop, 'urgent'))
    for item, urgency in pairs(change.urgent) do redis.call('HSET', loop_key(loop, 'urgent'), item, urgency) end
  end
  for item, score in pairs(change.ready) do
    if redis.call('ZSCORE', loop_key(loop, 'ready'), item) then
      redis.call('ZADD', loop_key(loop, 'ready'), score, item)
    end
  end
  -- What others wait for becomes more or less urgent.
  for _, wait in ipairs(change.asked or {}) do
    local other = string.match(wait, '^(.-)/')
    if other then touch_loop(other) end
  end
  if given(change.overrules) then
    local text = redis.call('HGET', P .. 'loops:decisions', change.overrules)
    if text then
      local decision = cjson.decode(text)
      decision.overruled_by = R.by
      redis.call('HSET', P .. 'loops:decisions', change.overrules, cjson.encode(decision))
    end
  end
end

local function apply(loop, change)
  local key = loop_key(loop)
  local tenant = redis.call('HGET', key, 'tenant') or nil
  local before = redis.call('HMGET', key, 'priority', 'share')
  for field, value in pairs(change.fields) do redis.call('HSET', key, field, value) end
  if given(change.fields.priority) and int(change.fields.priority) ~= before[1] then
    -- It keeps its place on each priority's line, or begins where the line begins.
    redis.call('HSET', key, 'share:' .. before[1], before[2],
      'share', redis.call('HGET', key, 'share:' .. int(change.fields.priority)) or '0')
  end
  if given(change.state) then
    redis.call('HSET', key, 'state', change.state, 'since', stamp(NOW),
      'held', change.state == 'paused' and '1' or '0')
    -- What kept it from being delivered concerned the branch that it had.
    if change.state ~= 'completed' then redis.call('HDEL', key, 'delivery_problem') end
    if change.state == 'running' then
      redis.call('HSETNX', key, 'started_at', stamp(NOW))
      redis.call('SADD', P .. 'loops:active', loop)
    elseif change.state ~= 'blocked' and change.state ~= 'waiting' then
      redis.call('SREM', P .. 'loops:active', loop)
    end
    if change.state ~= 'paused' and has_parked('loop:' .. loop) then release_behind('loop:' .. loop, AT_ONCE) end
    if change.state == 'completed' then redis.call('HSET', key, 'finished_at', stamp(NOW)) end
  end
  for item, records in pairs(change.items) do
    write_item(loop, item, records[2])
    local state, reason = string.match(records[2], '^(.-)|.-|.-|.-|(.*)$')
    if state == 'ready' then
      redis.call('ZADD', loop_key(loop, 'ready'), records[3], item)
    else
      redis.call('ZREM', loop_key(loop, 'ready'), item)
    end
    event('item', '', { loop = loop, item = item, state = state, reason = reason, tenant = tenant })
  end
  if given(change.limits) then
    redis.call('DEL', loop_key(loop, 'limits'))
    for name, limit in pairs(change.limits) do redis.call('HSET', loop_key(loop, 'limits'), name, limit) end
    warn_of_budget(loop)
    if has_parked('budget:' .. loop) then release_behind('budget:' .. loop, AT_ONCE) end
  end
  for number, heal in pairs(change.heals) do
    redis.call('HSET', loop_key(loop, 'heals'), number, heal)
    local found = cjson.decode(heal)
    loop_event(loop, { heal = found.action, item = found.item, outcome = found.outcome, reason = found.pattern,
      by = found.by, to = TELLS[found.parameter or ''] and found.parameter or nil })
  end
  -- The oldest ones go; each change adds a few.
  for _ = 1, redis.call('HLEN', loop_key(loop, 'heals')) - R.most_heals do
    local oldest
    for _, number in ipairs(redis.call('HKEYS', loop_key(loop, 'heals'))) do
      if not oldest or tonumber(number) < oldest then oldest = tonumber(number) end
    end
    redis.call('HDEL', loop_key(loop, 'heals'), int(oldest))
  end
  if given(change.spec) then redis.call('SET', loop_key(loop, 'spec'), change.spec) end
  for item, part in pairs(change.split) do redis.call('HSET', loop_key(loop, 'split'), item, part) end
  coordinate(loop, change, tenant or '')
  for _, id in ipairs(change.cancel) do cancel_run(id, change.note) end
  for item, id in pairs(change.forget) do
    redis.call('DEL', P .. item_memory(loop, item))
    if id ~= '' then resolve_run(id, change.note) end
  end
  if change.note ~= '' then note_in_log(loop, change.note, R.by) end
  redis.call('HINCRBY', key, 'version', 1)
  for _, alarm in ipairs(change.alarms) do
    note_in_log(loop, alarm.step .. ': ' .. alarm.text, R.by)
    loop_event(loop, { alarm = alarm.step, severity = alarm.severity, signal = alarm.signal,
      item = alarm.item, since = alarm.since, reason = alarm.text, by = R.by })
  end
  for _, found in ipairs(change.regressions) do
    found.by = R.by
    loop_event(loop, found)
  end
  if given(change.state) then
    loop_event(loop, { state = change.state, reason = change.fields.reason, by = R.by })
  end
end
for loop, change in pairs(R.changes) do apply(loop, change) end

-- Gives an item its slot: its job is written, or goes on from where it waited.
local function admit(each)
  local waiting = not given(each.job) and attempt_entry(each.id, redis.call('HGET', job_key(each.id), 'attempt') or 1)
  -- It was cancelled since, or waits for something else.
  if waiting and redis.call('HGET', P .. 'parked_behind', waiting) ~= 'slot:' .. each.loop then return end
  redis.call('ZADD', P .. 'loops:live', NOW, each.id)
  redis.call('HSET', loop_key(each.loop), 'share', each.share, 'admitted_at', stamp(NOW))
  if given(each.lock) then redis.call('HSET', P .. 'loops:locks', each.id, each.lock) end
  redis.call('HDEL', loop_key(each.loop, 'orders'), each.item)
  redis.call('HDEL', P .. 'loops:denied', each.loop .. '/' .. each.item)
  if given(each.job) then
    note_in_log(each.loop, each.item .. ' got a slot: ' .. each.because, 'admission')
    write_item(each.loop, each.item, each.new)
    redis.call('ZREM', loop_key(each.loop, 'ready'), each.item)
    event('item', each.id, { loop = each.loop, item = each.item, state = 'running',
      because = each.because })
    if store_job(each.id, each.job) then
      local entry = attempt_entry(each.id, 1)
      local e = read_entry(entry)
      RELEASED[#RELEASED + 1] = publication(entry, e)
    end
    return
  end
  local e, gates = read_entry(waiting), gates_of(waiting)
  leave_parking(waiting)
  if make_due(waiting, e.queue, e.priority, gates) then
    set_state(each.id, 'waiting', 'queued')
    RELEASED[#RELEASED + 1] = publication(waiting, e)
  end
end
for _, each in ipairs(R.admit) do admit(each) end
for name, why in pairs(R.denied) do redis.call('HSET', P .. 'loops:denied', name, why) end
for _, each in ipairs(R.decisions) do record_decision(each) end
if #R.admit > 0 then
  redis.call('INCR', P .. 'loops:epoch')
  for priority, start in pairs(R.lines) do redis.call('HSET', P .. 'loops:lines', priority, start) end
end

-- The planner has seen everything up to `planned`; if more has come, the hint stays.
if given(R.planned) then
  local key, hint = loop_key(R.loop), loop_entry(R.loop)
  redis.call('HSET', key, 'planned', int(R.planned), 'planned_at', stamp(NOW))
  take_entry(hint)
  -- A control worker of an earlier release cannot read hints, and puts them aside.
  local aside = redis.call('HGET', P .. 'outbox:quarantine', hint)
  if aside then
    leave_quarantine(hint)
    end_escalation(cjson.decode(aside).escalation, 'resolved', 'planner', 'the loop was planned')
  end
  if tonumber(redis.call('HGET', key, 'dirty')) > R.planned then
    hand_out(hint, 'loop', 5)
    RELEASED[#RELEASED + 1] = publication(hint, { queue = 'loop', priority = 5 })
  elseif given(R.wake_ms) then
    enqueue(hint, 'loop', 5, R.wake_ms)
  end
else
  touch_loop(R.loop)
end
if keyed then redis.call('SET', keyed, R.digest, 'PX', int(604800000)) end
local text = table.concat(RELEASED, '\n')
redis.call('HSET', loop_key(R.loop), 'written_by', R.token, 'released', text)
return { 'written', text }
