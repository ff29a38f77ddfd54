-- Webhook deliveries, one at a time: a worker takes one with a short lease, sends it and reports
-- the result.
-- Each webhook has an index of its own, so that a receiver that hangs starves no other.
local HOOKS, DEAD = P .. 'deliveries:hooks', P .. 'deliveries:dead'
local function key_of(id) return P .. 'delivery:' .. id end
local function due_key(hook) return P .. 'deliveries:due:' .. hook end

local function wait_until(id, hook, at)
  redis.call('SADD', HOOKS, hook)
  redis.call('ZADD', due_key(hook), at, id)
end

local function stop_waiting(id)
  local hook = redis.call('HGET', key_of(id), 'hook')
  if hook then redis.call('ZREM', due_key(hook), id) end
end

-- Earlier releases had one index for all webhooks.
local function move_old_index()
  local old = redis.call('ZRANGE', P .. 'deliveries', 0, 999, 'WITHSCORES')
  for i = 1, #old, 2 do
    local hook = redis.call('HGET', key_of(old[i]), 'hook')
    if hook then wait_until(old[i], hook, old[i + 1]) end
    redis.call('ZREM', P .. 'deliveries', old[i])
  end
end

local function delete(id)
  stop_waiting(id)
  redis.call('DEL', key_of(id))
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
  stop_waiting(id)
  redis.call('ZADD', DEAD, NOW, id)
end

-- Returns a webhook's first due delivery and its time. Buries what was tried too often.
local function first_due(hook)
  while true do
    local found = redis.call('ZRANGEBYSCORE', due_key(hook), '-inf', NOW, 'WITHSCORES', 'LIMIT', 0, 1)
    local id = found[1]
    if not id then return nil end
    local row = redis.call('HMGET', key_of(id), 'tries', 'error')
    if row[1] and tonumber(row[1]) < R.tries then return id, tonumber(found[2]) end
    if row[1] then
      bury(id, row[2] ~= '' and row[2] or 'its senders died while sending it')
    else
      redis.call('ZREM', due_key(hook), id)
    end
  end
end

-- Takes the delivery that has waited longest, of the webhooks that are not held back. A try counts
-- when it begins, so that a delivery that always kills its sender ends, too.
local function take()
  local taken = redis.call('GET', P .. 'deliveries:taken:' .. R.token)
  if taken and redis.call('HGET', key_of(taken), 'token') == R.token then
    return redis.call('HGETALL', key_of(taken)) -- a repeated call, whose first answer was lost
  end
  trim()
  move_old_index()
  local hooks = redis.call('SMEMBERS', HOOKS)
  table.sort(hooks)
  local chosen, waits, since
  for _, hook in ipairs(hooks) do
    if redis.call('EXISTS', due_key(hook)) == 0 then
      redis.call('SREM', HOOKS, hook)
    elseif not R.spare[hook] then
      local id, at = first_due(hook)
      if id and (not since or at < since) then chosen, waits, since = id, hook, at end
    end
  end
  if not chosen then return {} end
  redis.call('HINCRBY', key_of(chosen), 'tries', 1)
  redis.call('HSET', key_of(chosen), 'token', R.token)
  redis.call('SET', P .. 'deliveries:taken:' .. R.token, chosen, 'PX', int(R.lease_ms))
  wait_until(chosen, waits, NOW + R.lease_ms)
  return redis.call('HGETALL', key_of(chosen))
end

local function finish_try()
  local found = redis.call('HMGET', key_of(R.id), 'token', 'tries', 'hook')
  if found[1] ~= R.token then return { 'lost' } end
  if not given(R.error) then
    delete(R.id)
  elseif R.final or tonumber(found[2]) >= R.tries then
    bury(R.id, R.error)
    return { 'dead' }
  else
    redis.call('HSET', key_of(R.id), 'token', '', 'error', R.error)
    wait_until(R.id, found[3], NOW + R.delay_ms)
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
  wait_until(id, redis.call('HGET', key_of(id), 'hook'), NOW)
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
