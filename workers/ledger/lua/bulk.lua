-- The steps of a bulk action. `todo` is the list of its escalations; a batch stays at its head until
-- it is committed. If its worker dies, the next one repeats the batch, which is harmless.
local key = P .. 'bulk:' .. R.id
local todo, problems = key .. ':todo', key .. ':problems'

local function extend_retention()
  for _, name in ipairs({ key, todo, problems }) do expire(name, R.keep_ms) end
end

local function finish_bulk(state)
  redis.call('HSET', key, 'state', state, 'ended_at', stamp(NOW))
  redis.call('DEL', todo)
  redis.call('ZREM', P .. 'bulks', R.id)
end

if R.verb == 'create' then
  if redis.call('EXISTS', key) == 1 then return { 'created' } end
  redis.call('HSET', key, 'action', R.action, 'which', R.which, 'per_second', R.per_second,
    'total', #R.ids, 'done', 0, 'skipped', 0, 'failed', 0, 'state', 'running',
    'created_at', stamp(NOW), 'token', '', 'held_until', '0',
    'allowance', math.max(1, R.per_second), 'allowed_at', stamp(NOW))
  redis.call('ZADD', P .. 'bulks', NOW, R.id)
  for _, id in ipairs(R.ids) do redis.call('RPUSH', todo, id) end
  if #R.ids == 0 then finish_bulk('done') end
  extend_retention()
  return { 'created' }
end

local b = redis.call('HMGET', key, 'state', 'token', 'held_until', 'per_second', 'allowance',
  'allowed_at')
if not b[1] then
  redis.call('ZREM', P .. 'bulks', R.id)
  return { 'over' }
end

if R.verb == 'stop' then
  if b[1] == 'running' then finish_bulk('stopped') end
  return { 'over' }
end

if R.verb == 'take' then
  if b[1] ~= 'running' then return { 'over' } end
  if b[2] ~= '' and b[2] ~= R.token and not expired(b[3]) then
    return { 'wait', stamp(math.min(tonumber(b[3]) - NOW, 1000)) }
  end
  -- A bucket for two seconds, so that a worker that comes once a second can use the whole rate.
  local rate = tonumber(b[4])
  local allowance = math.min(math.max(1, 2 * rate),
    tonumber(b[5]) + (NOW - tonumber(b[6])) / 1000 * rate)
  local n = math.min(R.most, math.floor(allowance))
  if n < 1 then return { 'wait', stamp((1 - allowance) / rate * 1000) } end
  local ids = redis.call('LRANGE', todo, 0, n - 1)
  if #ids == 0 then
    finish_bulk('done')
    return { 'over' }
  end
  redis.call('HSET', key, 'token', R.token, 'held_until', stamp(NOW + R.lease_ms),
    'allowance', tostring(allowance - #ids), 'allowed_at', stamp(NOW))
  return { 'taken', unpack(ids) }
end

-- commit
if b[2] ~= R.token then return { 'lost' } end
redis.call('HSET', key, 'token', '')
redis.call('HINCRBY', key, 'done', R.done)
redis.call('HINCRBY', key, 'skipped', R.skipped)
redis.call('HINCRBY', key, 'failed', #R.problems)
for _, problem in ipairs(R.problems) do
  if redis.call('LLEN', problems) < R.problems_cap then redis.call('RPUSH', problems, problem) end
end
if b[1] == 'running' then
  redis.call('LTRIM', todo, R.count, -1)
  if redis.call('LLEN', todo) == 0 then finish_bulk('done') end
end
extend_retention()
return { 'committed' }
