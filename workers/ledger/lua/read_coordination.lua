-- Read what all loops have to do with each other: the locks on files, who was denied files, the events
-- that were given off, of one tenant or of all, the newest decisions, and the orders that are in force.
allow_when_full()
local last, keys, decisions = tonumber(redis.call('GET', P .. 'loops:decided') or '0'), {}, {}
for number = last, math.max(1, last - R.limit + 1), -1 do keys[#keys + 1] = int(number) end
if #keys > 0 then
  for _, text in ipairs(redis.call('HMGET', P .. 'loops:decisions', unpack(keys))) do
    if text then decisions[#decisions + 1] = text end
  end
end
local events, all = {}, redis.call('HGETALL', P .. 'loops:events')
for i = 1, #all, 2 do
  if not given(R.tenant) or string.match(all[i], '^(.*)/') == R.tenant then
    events[#events + 1] = { all[i], all[i + 1], redis.call('ZRANGE', emitters_key(all[i]), 0, R.named - 1),
      redis.call('ZCARD', emitters_key(all[i])) }
  end
end
local orders = {}
for _, loop in ipairs(R.limit > 0 and redis.call('ZRANGE', P .. 'loops', 0, -1) or {}) do
  local found = redis.call('HGETALL', loop_key(loop, 'orders'))
  if #found > 0 then orders[#orders + 1] = { loop, found } end
end
return { held_locks(), redis.call('HGETALL', P .. 'loops:denied'), events, decisions, orders }
