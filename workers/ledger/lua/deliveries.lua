-- Webhook deliveries, one at a time: a worker takes one with a short lease, sends it and reports
-- the result.
local PENDING, DEAD = P .. 'deliveries', P .. 'deliveries:dead'
local function key_of(id) return P .. 'delivery:' .. id end

local function delete(id)
  redis.call('DEL', key_of(id))
  redis.call('ZREM', PENDING, id)
  redis.call('ZREM', DEAD, id)
end

-- Dead deliveries are kept for a while, up to a cap.
local function trim()
  redis.call('ZREMRANGEBYSCORE', DEAD, '-inf', NOW - R.keep_ms)
  local over = redis.call('ZCARD', DEAD) - R.dead_cap
  if over > 0 then
    for _, oldest in ipairs(redis.call('ZRANGE', DEAD, 0, over - 1)) do delete(oldest) end
  end
end

local function bury(id, why)
  redis.call('HSET', key_of(id), 'state', 'dead', 'token', '', 'error', why)
  expire(key_of(id), R.keep_ms)
  redis.call('ZREM', PENDING, id)
  redis.call('ZADD', DEAD, NOW, id)
end

-- Takes the first due delivery whose receiver is not held back. A try counts when it begins, so that
-- a delivery that always kills its sender ends, too.
local function take()
  trim()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', PENDING, '-inf', NOW, 'LIMIT', 0, 1000)) do
    local found = redis.call('HMGET', key_of(id), 'hook', 'tries', 'error')
    if not found[1] then
      redis.call('ZREM', PENDING, id)
    elseif tonumber(found[2]) >= R.tries then
      bury(id, found[3] ~= '' and found[3] or 'its senders died while sending it')
    elseif not R.spare[found[1]] then
      redis.call('HINCRBY', key_of(id), 'tries', 1)
      redis.call('HSET', key_of(id), 'token', R.token)
      redis.call('ZADD', PENDING, NOW + R.lease_ms, id)
      return redis.call('HGETALL', key_of(id))
    end
  end
  return {}
end

local function finish_try()
  local found = redis.call('HMGET', key_of(R.id), 'token', 'tries')
  if found[1] ~= R.token then return { 'lost' } end
  if not given(R.error) then
    delete(R.id)
  elseif R.final or tonumber(found[2]) >= R.tries then
    bury(R.id, R.error)
    return { 'dead' }
  else
    redis.call('HSET', key_of(R.id), 'token', '', 'error', R.error)
    redis.call('ZADD', PENDING, NOW + R.delay_ms, R.id)
    return { 'again' }
  end
  return { 'done' }
end

-- A person can retry dead deliveries and delete any.
local function revive(id)
  if redis.call('HGET', key_of(id), 'state') ~= 'dead' then return 0 end
  redis.call('HSET', key_of(id), 'state', 'pending', 'tries', 0)
  expire(key_of(id), R.keep_ms)
  redis.call('ZREM', DEAD, id)
  redis.call('ZADD', PENDING, NOW, id)
  return 1
end

if R.verb == 'take' then return take() end
if R.verb == 'end' then return finish_try() end
local done = {}
local ids = given(R.id) and { R.id } or redis.call('ZRANGE', DEAD, 0, -1)
for _, id in ipairs(ids) do
  if R.verb == 'retry' then
    if revive(id) == 1 then done[#done + 1] = id end
  elseif redis.call('EXISTS', key_of(id)) == 1 then
    delete(id)
    done[#done + 1] = id
  end
end
return done
