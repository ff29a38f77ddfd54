-- Forget events that people gave off before a time, unless a loop waits for them now: these are looked at
-- again after as long a time. Returns how many are gone, and how many were looked at.
local gone, names = 0, redis.call('ZRANGEBYSCORE', P .. 'loops:given', '-inf', R.before, 'LIMIT', 0, R.most)
for _, name in ipairs(names) do
  local tenant, event_name = string.match(name, '^(.*)/(.-)$')
  local found = read_event(name)
  if redis.call('EXISTS', waiters_key(tenant, 'event:' .. event_name)) == 1 then
    redis.call('ZADD', P .. 'loops:given', NOW, name)
  elseif found and found.person then
    remove_person(name, found)
    gone = gone + 1
  end
end
return { gone, #names }
