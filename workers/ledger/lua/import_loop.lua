-- Write a loop that comes from another ledger, all or nothing: the staged records of its jobs get their
-- names, and what waited there waits here.
local key = loop_key(R.loop)
local known = redis.call('HMGET', key, 'uid', 'state')
if known[2] then return { known[1] == R.uid and 'seen' or 'conflict' } end
for _, loop in ipairs(redis.call('ZRANGE', P .. 'loops', 0, -1)) do
  if redis.call('HGET', loop_key(loop), 'uid') == R.uid then return { 'elsewhere', loop } end
end
local tenant = given(R.tenant) and R.tenant or ''
if loops_are_full(R.tenant) then return { 'full' } end
if #R.events > 0 and signals_left(R.account, tenant, R.events) < 0 then return { 'events' } end
local function staged(name) return P .. 'arriving:' .. R.token .. ':' .. name end
for _, name in ipairs(R.staged) do
  if redis.call('EXISTS', staged(name)) == 0 then return { 'late' } end
end
-- It was here before: what a deleted loop left is replaced, unless it is another's or still runs.
for _, job in ipairs(R.jobs) do
  local left = redis.call('HMGET', job_key(job.id), 'state', 'tenant', 'attempt', 'owner')
  if left[1] then
    if (left[2] or '') ~= tenant then return { 'conflict' } end
    local owner = R.fields.owner
    if given(owner) and owner ~= '' and (left[4] or '') ~= owner then return { 'conflict' } end
    if not TERMINAL[left[1]] or has_worker(job.id, left[3]) then return { 'held' } end
  end
end
need_room()
local function forget(id)
  local left = redis.call('HMGET', job_key(id), 'state', 'attempt')
  if not left[1] then return end
  redis.call('ZREM', P .. 'jobs:' .. left[1], id)
  for _, cycle in ipairs(open_cycles(id)) do end_cycle(id, cycle, 'cancelled', 'the loop came back') end
  for n = 1, attempts_of(left[2]) do redis.call('DEL', attempt_key(id, n)) end
end
for _, job in ipairs(R.jobs) do forget(job.id) end
for _, name in ipairs(R.staged) do
  redis.call('RENAME', staged(name), P .. name)
  redis.call('PERSIST', P .. name)
end

redis.call('HSET', key, 'version', 1, 'dirty', 0, 'planned', 0, 'share', 0, 'uid', R.uid,
  'held', R.fields.state == 'paused' and '1' or '0')
for field, value in pairs(R.fields) do redis.call('HSET', key, field, value) end
for name, limit in pairs(R.limits) do redis.call('HSET', loop_key(R.loop, 'limits'), name, limit) end
for name, used in pairs(R.spent) do redis.call('HSET', loop_key(R.loop, 'spent'), name, used) end
for item, record in pairs(R.items) do write_item(R.loop, item, record) end
for item, score in pairs(R.ready) do redis.call('ZADD', loop_key(R.loop, 'ready'), score, item) end
for number, heal in pairs(R.heals) do redis.call('HSET', loop_key(R.loop, 'heals'), number, heal) end
for item, order in pairs(R.orders) do redis.call('HSET', loop_key(R.loop, 'orders'), item, order) end
for _, line in ipairs(R.log) do redis.call('RPUSH', loop_key(R.loop, 'log'), line) end
redis.call('SET', loop_key(R.loop, 'spec'), R.spec)
for item, files in pairs(R.seen) do redis.call('HSET', loop_key(R.loop, 'seen'), item, files) end
for item, part in pairs(R.split) do redis.call('HSET', loop_key(R.loop, 'split'), item, part) end
redis.call('ZADD', P .. 'loops', NOW, R.loop)
redis.call('SETNX', P .. 'loops:epoch', '0') -- there has been a loop: see alerts.lua
if R.fields.state == 'blocked' or R.fields.state == 'waiting' then
  redis.call('SADD', P .. 'loops:active', R.loop)
end

local function await_cycles(job)
  save_open_cycles(job.id, job.open)
  for _, cycle in ipairs(job.cycles) do
    redis.call('ZADD', P .. 'cycles', cycle.at, cycle.id)
    if cycle.status == 'pending_delayed_verification' then
      local due = math.max(NOW, tonumber(redis.call('HGET', cycle_key(cycle.id), 'due_at') or NOW))
      local place = redis.call('HGET', job_key(job.id), 'verify_on') or 'verify'
      await_verification(job.id, cycle.id, place, nil, due)
    elseif cycle.status ~= 'pending_immediate_retry' then
      expire(cycle_key(cycle.id), R.cycle_retention_ms or 34560000000)
    end
  end
end

-- The next attempt of a job that has not ended.
local function await_attempt(id, n)
  local entry = attempt_entry(id, n)
  local attempt = redis.call('HMGET', attempt_key(id, n), 'mode', 'not_before')
  local job = redis.call('HMGET', job_key(id), 'priority', 'memory')
  redis.call('PERSIST', P .. job[2])
  local queue, priority = queue_for('a', id, n), priority_of(attempt[1], job[1])
  local due = tonumber(attempt[2] or '') or 0
  if due > NOW then
    set_state(id, nil, 'waiting', 'delay')
    return enqueue(entry, queue, priority, due)
  end
  set_state(id, nil, 'queued')
  if make_due(entry, queue, priority, gates_of(entry)) then
    RELEASED[#RELEASED + 1] = publication(entry, read_entry(entry))
  end
end

local function arrive(job)
  local state = redis.call('HGET', job_key(job.id), 'state')
  redis.call('ZADD', P .. 'jobs', job.at, job.id)
  await_cycles(job)
  for _, each in ipairs(job.escalations) do
    escalate(each.id, job.id, each.attempt, each.cycle_id, each.reason, each.detail,
      { signature = each.signature, kind = each.kind })
  end
  if not TERMINAL[state] then return await_attempt(job.id, redis.call('HGET', job_key(job.id), 'attempt')) end
  index_state(job.id, nil, state)
  retain(job.id)
end
for _, job in ipairs(R.jobs) do arrive(job) end

note_in_log(R.loop, 'imported', R.by)
loop_event(R.loop, { state = R.fields.state, reason = R.fields.reason, by = R.by })
declare(R.loop, R.declared)
for _, name in ipairs(R.events) do signal_event(tenant, name, R.by, R.account) end
touch_loop(R.loop)
return { 'written', table.concat(RELEASED, '\n') }
