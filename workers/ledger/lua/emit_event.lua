-- Give an event off for a person or another system, or take it back. Returns whether that is new.
local name = R.tenant .. '/' .. R.event
local found = read_event(name)
if R.withdraw then
  if not found then return { 'unknown' } end
  if redis.call('EXISTS', emitters_key(name)) == 1 then return { 'held' } end
  remove_person(name, found)
  touch_waiting(R.tenant, 'event:' .. R.event)
  return { 'withdrawn', table.concat(RELEASED, '\n') }
end
if found and found.person then return { 'seen' } end
if tonumber(redis.call('HGET', P .. 'loops:signals', R.account) or '0') >= R.most then return { 'full' } end
-- It stays, also if an item that gave it off runs again.
add_person(name, R.by, R.account)
if found then return { 'seen' } end
touch_waiting(R.tenant, 'event:' .. R.event)
return { 'emitted', table.concat(RELEASED, '\n') }
