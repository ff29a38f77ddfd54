-- Forget events that are as old as they were when somebody looked, unless a loop waits for them now.
local wanted = {}
for _, loop in ipairs(redis.call('SMEMBERS', P .. 'loops:coupled')) do
  local found = redis.call('HMGET', loop_key(loop), 'tenant', 'outer')
  for name in string.gmatch(found[2] or '', 'event:([^\n]+)') do wanted[(found[1] or '') .. '/' .. name] = true end
end
local gone = 0
for name, at in pairs(R.events) do
  local text = redis.call('HGET', P .. 'loops:events', name)
  if text and not wanted[name] and cjson.decode(text).at == at then
    gone = gone + redis.call('HDEL', P .. 'loops:events', name)
  end
end
return { gone }
