-- Forget events of people that are as old as they were when somebody looked, unless a loop waits for them now.
local wanted = {}
for _, loop in ipairs(redis.call('SMEMBERS', P .. 'loops:coupled')) do
  local found = redis.call('HMGET', loop_key(loop), 'tenant', 'outer')
  for name in string.gmatch(found[2] or '', 'event:([^\n]+)') do wanted[(found[1] or '') .. '/' .. name] = true end
end
local gone = 0
for name, at in pairs(R.events) do
  local found, tenant, event_name = read_event(name), string.match(name, '^(.*)/(.-)$')
  if found and not wanted[name] and found.at == at and remove_person(tenant, event_name) then gone = gone + 1 end
end
return { gone }
