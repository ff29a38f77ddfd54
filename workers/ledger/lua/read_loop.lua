-- Read a loop in one step: its record, its items and its budget, what all loops ask for, and which
-- slots are taken.
allow_when_full()
local function fields_of(part) return redis.call('HGETALL', loop_key(R.loop, part)) end
local answer = { {}, {}, {}, {}, {}, {}, {}, {} }
-- Ends items that still run although their job has ended: a worker of an earlier release settled it, or
-- the job is gone.
local items = fields_of('items')
for i = 1, #items, 2 do
  local id = string.match(items[i + 1], '^running|.-|.-|(.-)|')
  local job = id and redis.call('HMGET', job_key(id), 'state', 'reason', 'attempt')
  if job and (not job[1] or TERMINAL[job[1]]) then
    end_item(id, job[3] or 1, R.loop, items[i], job[1] or 'cancelled', job[1] and job[2] or 'its job is gone')
  end
end
answer[1] = fields_of()
if #answer[1] == 0 then return answer end
answer[2] = fields_of('items')
answer[3], answer[4], answer[5] = fields_of('limits'), fields_of('spent'), fields_of('reserved')

local function names_of(set)
  local names = {}
  for name in pairs(set) do names[#names + 1] = name end
  table.sort(names)
  return names
end

-- What some items have in parts of their loop; empty where nothing is.
local function of_items(loop, part, items)
  if #items == 0 then return {} end
  local found = redis.call('HMGET', loop_key(loop, part), unpack(items))
  for i = 1, #items do found[i] = found[i] or '' end
  return found
end

-- The loops of a tenant that wait for others, with what for and how urgently.
local function waiting_loops(tenant)
  local found = {}
  for _, loop in ipairs(redis.call('SMEMBERS', P .. 'loops:coupled')) do
    local record = redis.call('HMGET', loop_key(loop), 'tenant', 'state', 'asks')
    local goes_on = record[2] == 'running' or record[2] == 'waiting' or record[2] == 'blocked'
    if goes_on and record[3] and record[3] ~= '{}' and (record[1] or '') == tenant then
      found[#found + 1] = { loop, tenant, record[3] }
    end
  end
  return found
end

-- What has begun and waits for a slot: its job, its item, since when, and how urgent others wait for it.
local function waiting_items(loop)
  local found = {}
  for i, entry in ipairs(redis.call('ZRANGE', parked_key('slot:' .. loop), 0, -1)) do
    local _, id = parse_entry(entry)
    local job = redis.call('HMGET', job_key(id), 'item', 'parked_at')
    local urgency = job[1] and redis.call('HGET', loop_key(loop, 'urgent'), job[1])
    found[i] = { id, job[1] or '', job[2] or '0', urgency or '' }
  end
  return found
end

-- What waits for its first slot, the next one first, with its scores; and what a person lets go first.
local function ready_items(loop, most)
  local found = redis.call('ZRANGE', loop_key(loop, 'ready'), 0, most - 1, 'WITHSCORES')
  local listed, orders = {}, redis.call('HGETALL', loop_key(loop, 'orders'))
  for i = 1, #orders > 0 and #found or 0, 2 do listed[found[i]] = true end
  for i = 1, #orders, 2 do
    local score = not listed[orders[i]] and string.find(orders[i + 1], '"first"', 1, true)
      and redis.call('ZSCORE', loop_key(loop, 'ready'), orders[i])
    if score then found[#found + 1], found[#found + 2] = orders[i], score end
  end
  return found
end
local SPARE = 20
local demands, undeclared = {}, {}
local active = redis.call('SMEMBERS', P .. 'loops:active')
-- A plan may resume the loop itself.
if redis.call('SISMEMBER', P .. 'loops:active', R.loop) == 0 then active[#active + 1] = R.loop end
-- Whether the files of a loop's items were noted. They were not if an earlier release wrote the items.
local function is_declared(loop)
  local found = redis.call('HMGET', loop_key(loop), 'spec', 'declared')
  if found[1] ~= found[2] then undeclared[loop] = true end
  return found[1] == found[2]
end

-- Adds what a loop asks for.
local function ask(loop, found)
  -- No more of them can get a slot, but for those whose files are locked or that a person holds.
  local most = math.min(R.most, math.abs(tonumber(found[4] or '1')) + SPARE)
  local ready, waiting, items = ready_items(loop, most), waiting_items(loop), {}
  for j = 1, #ready, 2 do items[#items + 1] = ready[j] end
  for _, each in ipairs(waiting) do items[#items + 1] = each[2] end
  local more = redis.call('ZCARD', loop_key(loop, 'ready')) - #ready / 2
  demands[#demands + 1] = { loop, found[1], found[2], found[3], found[4], found[5], ready,
    redis.call('HGETALL', loop_key(loop, 'limits')), redis.call('HGETALL', loop_key(loop, 'spent')),
    redis.call('HGETALL', loop_key(loop, 'reserved')), waiting, redis.call('SCARD', loop_key(loop, 'begun')),
    found[6] or '', found[7] or '', found[8] or '', more, items, of_items(loop, 'items', items),
    of_items(loop, 'files', items), of_items(loop, 'seen', items), of_items(loop, 'orders', items) }
end
for _, loop in ipairs(active) do
  local found = redis.call('HMGET', loop_key(loop), 'priority', 'weight', 'share', 'concurrency', 'version',
    'space', 'admitted_at', 'since')
  if is_declared(loop) then ask(loop, found) end
end
local live = live_items()
for _, each in ipairs(live) do is_declared(each[2]) end
answer[6] = { redis.call('GET', P .. 'loops:epoch') or '0', redis.call('GET', P .. 'loops:slots') or '',
  redis.call('HGETALL', P .. 'loops:lines'), live, demands, held_locks(),
  waiting_loops(redis.call('HGET', loop_key(R.loop), 'tenant') or ''),
  redis.call('HGETALL', P .. 'loops:denied'), names_of(undeclared) }
answer[7] = redis.call('HVALS', loop_key(R.loop, 'heals'))
answer[8] = others_of(R.loop)
return answer
