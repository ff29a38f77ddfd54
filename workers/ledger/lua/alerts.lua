-- Find what webhooks subscribe to and write the deliveries in the same step, so that a crash
-- neither loses nor doubles an alert. One per group and window, with the count since the last one.
local ALERTS = P .. 'alerts'          -- hash: the last event and group read, the last call
local DUE = P .. 'alerts:due'         -- zset: `g:<signature>`, `b:<provider>`, `b:credits:<provider>`, `e:edit:…`
local tag = string.match(P, '{(.-)}')
-- A repeated call, whose first answer was lost, goes on counting, so that no id is used twice.
local before = redis.call('HMGET', ALERTS, 'token', 'written')
local written = before[1] == R.token and tonumber(before[2]) or 0

local function deliver(hook, name, count, about)
  written = written + 1
  local id = tag .. '-' .. R.token .. '-' .. written
  local key = P .. 'delivery:' .. id
  local index = P .. 'deliveries:due:' .. hook
  -- The cap keeps an unreachable receiver from filling the ledger; other webhooks are not affected.
  local full = redis.call('ZCARD', index) >= R.cap
  redis.call('HSET', key, 'id', id, 'hook', hook, 'event', name, 'count', count,
    'about', cjson.encode(about), 'at', stamp(NOW), 'tries', 0, 'token', '',
    'state', full and 'dead' or 'pending', 'error', full and 'too many deliveries wait' or '')
  expire(key, R.keep_ms)
  redis.call('ZADD', full and P .. 'deliveries:dead' or index, NOW, id)
  if not full then redis.call('SADD', P .. 'deliveries:hooks', hook) end
end

-- Each webhook gets the first of these events that it subscribes to.
local function deliver_first(names, count, about)
  local sent = false
  for _, hook in ipairs(R.hooks) do
    for _, name in ipairs(names) do
      if hook.wants[name] then
        deliver(hook.name, name, count, about)
        sent = true
        break
      end
    end
  end
  return sent
end

local function subscribed(name)
  for _, hook in ipairs(R.hooks) do
    if hook.wants[name] then return true end
  end
  return false
end

-- Returns when a group may be alerted again. A muted one is checked now and then, because a mute
-- may be lifted early.
local function due_at(alerted_at, muted_until)
  local muted = tonumber(muted_until or '') or 0
  if muted > NOW then return math.min(muted, NOW + 60000) end
  return (tonumber(alerted_at or '') or 0) + R.window_ms
end

-- -- changes --------------------------------------------------------------------------------------

-- The overlap allows for a clock that was set back.
local looked = tonumber(redis.call('HGET', ALERTS, 'looked') or '0') - 60000
for _, signature in ipairs(redis.call('ZRANGEBYSCORE', P .. 'groups', looked, '+inf')) do
  local group = redis.call('HMGET', P .. 'group:' .. signature, 'since_alert', 'alerted_at')
  if tonumber(group[1] or '0') > 0 then
    redis.call('ZADD', DUE, due_at(group[2], R.muted[signature]), 'g:' .. signature)
  end
end

local function finished(change)
  deliver_first({ 'job_finished' }, 1, { job_id = change.job, state = change.state, reason = change.reason,
    task_type = change.task_type, tenant = change.tenant, attempts = change.attempts,
    tokens = change.tokens, first_try = change.first_try })
end

-- A webhook that wants only the end of a loop does not get its other changes.
local function loop_changed(change)
  local about = { loop = change.loop, state = change.state, reason = change.reason ~= '' and change.reason or nil,
    by = change.by, tenant = change.tenant, changed_at = change.at, version = change.version }
  deliver_first(change.state == 'completed' and { 'loop_completed', 'loop_changed' } or { 'loop_changed' }, 1, about)
end

local function loop_warned(change)
  local scope, resource = string.match(change.budget, '^(%a+):(%a+)$')
  deliver_first({ 'loop_budget' }, 1, { loop = change.loop, scope = scope, resource = resource,
    percent = change.percent, used = change.used, limit = change.limit, tenant = change.tenant,
    changed_at = change.at, version = change.version })
end

-- A step of the response to what should not last. One that is only logged is sent to nobody.
local function loop_alarmed(change)
  if change.alarm == 'log' or (change.alarm == 'ended' and change.severity < 2) then return end
  local names = change.alarm == 'escalate' and { 'loop_escalated', 'loop_health' } or { 'loop_health' }
  deliver_first(names, 1, { loop = change.loop, step = change.alarm, severity = change.severity,
    signal = change.signal, item = change.item ~= '' and change.item or nil, since = change.since,
    reason = change.reason, tenant = change.tenant, changed_at = change.at, version = change.version })
end

-- A healing that begins, and its end. The end of an escalation needs nobody.
local function loop_healed(change)
  local begins = change.to and change.outcome == 'pending'
  local names = begins and { 'loop_escalated', 'loop_healed' } or { 'loop_healed' }
  deliver_first(names, 1, { loop = change.loop, action = change.heal, outcome = change.outcome, to = change.to,
    item = change.item ~= '' and change.item or nil, reason = change.reason, by = change.by,
    tenant = change.tenant, changed_at = change.at, version = change.version })
end

-- A regression that was found, and each step until it is repaired.
local function loop_regression(change)
  deliver_first({ 'loop_regression' }, 1, { loop = change.loop, item = change.item, status = change.regression,
    culprit = change.culprit, culprit_item = change.culprit_item, tenant = change.tenant,
    changed_at = change.at, version = change.version })
end

local function read_change(change)
  if change.type == 'job' and TERMINAL[change.state] then return finished(change) end
  if change.type ~= 'loop' then return end
  if change.budget then return loop_warned(change) end
  if change.alarm then return loop_alarmed(change) end
  if change.regression then return loop_regression(change) end
  if change.heal then return loop_healed(change) end
  if change.state then loop_changed(change) end
end

local ABOUT_LOOPS = { 'loop_changed', 'loop_completed', 'loop_budget', 'loop_health', 'loop_escalated',
  'loop_healed', 'loop_regression' }
-- Without any loop so far, nobody reads the events for one.
local reads = subscribed('job_finished')
if redis.call('EXISTS', P .. 'loops:epoch') == 1 then
  for _, name in ipairs(ABOUT_LOOPS) do reads = reads or subscribed(name) end
end
-- A cursor ensures that each event is read once. The first run starts one window ago.
local more = 0
local cursor = redis.call('HGET', ALERTS, 'cursor')
  or string.format('%.0f-0', math.max(0, NOW - R.window_ms))
if reads then
  local found = redis.call('XRANGE', P .. 'events', '(' .. cursor, '+', 'COUNT', R.limit)
  for _, item in ipairs(found) do
    local readable, change = pcall(cjson.decode, item[2][2])
    if readable and type(change) == 'table' then read_change(change) end
    cursor = item[1]
  end
  if #found == R.limit then more = 1 end
else
  local last = redis.call('XREVRANGE', P .. 'events', '+', '-', 'COUNT', 1)
  if last[1] then cursor = last[1][1] end
end
redis.call('HSET', ALERTS, 'cursor', cursor, 'looked', stamp(NOW))

-- -- due alerts -----------------------------------------------------------------------------------

local function about_group(raw)
  local about = { signature = raw.signature, reason = raw.reason, example_job = raw.example,
    open = tonumber(raw.open or '0'), total = tonumber(raw.total or '0'), task_types = {} }
  if raw.kind and raw.kind ~= '' then about.kind = raw.kind end
  for name, count in pairs(raw) do
    local task_type = string.match(name, '^type:(.+)$')
    if task_type and tonumber(count) > 0 then about.task_types[task_type] = tonumber(count) end
  end
  return about
end

local function send_due(member, key)
  local flat, raw = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do raw[flat[i]] = flat[i + 1] end
  local count = tonumber(raw.since_alert or '0')
  if count == 0 then return redis.call('ZREM', DUE, member) end
  local at = due_at(raw.alerted_at, R.muted[raw.signature or ''])
  if at > NOW then return redis.call('ZADD', DUE, at, member) end
  local sent
  if raw.provider and raw.reason == 'credits' then
    -- Nobody needs to be told at the end of a window that it was out of credits some time ago.
    local unpaid = tonumber(redis.call('HGET', gate_key(raw.provider), 'credits') or '0') > 0
    sent = unpaid and deliver_first({ 'out_of_credits', 'breaker_opened' }, count,
      { provider = raw.provider, reason = raw.reason })
  elseif raw.edit then
    sent = deliver_first({ 'escalated' }, count, { session = raw.session, edit = raw.edit, reason = 'quarantined' })
  elseif raw.provider then
    sent = deliver_first({ 'breaker_opened' }, count, { provider = raw.provider })
  elseif R.budget[raw.reason] then
    sent = deliver_first({ 'budget_exhausted', 'escalated' }, count, about_group(raw))
  else
    sent = deliver_first({ 'escalated' }, count, about_group(raw))
  end
  redis.call('HSET', key, 'since_alert', 0)
  if sent then redis.call('HSET', key, 'alerted_at', stamp(NOW)) end
  redis.call('ZREM', DUE, member)
end

local due = redis.call('ZRANGEBYSCORE', DUE, '-inf', NOW, 'LIMIT', 0, R.limit)
for _, member in ipairs(due) do
  local kind, name = string.sub(member, 1, 1), string.sub(member, 3)
  send_due(member, P .. (kind == 'g' and 'group:' or 'alert:') .. name)
end
if #due == R.limit then more = 1 end
local waiting = redis.call('ZCARD', P .. 'deliveries') -- of an earlier release
for _, hook in ipairs(redis.call('SMEMBERS', P .. 'deliveries:hooks')) do
  waiting = waiting + redis.call('ZCOUNT', P .. 'deliveries:due:' .. hook, '-inf', NOW)
end
redis.call('HSET', ALERTS, 'token', R.token, 'written', written)
return { written, waiting, more }
