-- Forget events of people that are as old as they were when somebody looked, unless a loop waits for them now.
local gone = 0
for name, at in pairs(R.events) do
  local found, tenant, event_name = read_event(name), string.match(name, '^(.*)/(.-)$')
  local wanted = redis.call('EXISTS', waiters_key(tenant, 'event:' .. event_name)) == 1
  if found and not wanted and found.at == at and remove_person(tenant, event_name) then gone = gone + 1 end
end
return { gone }
