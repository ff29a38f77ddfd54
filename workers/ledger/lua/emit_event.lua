-- Give an event off for a person or another system, or take it back. Returns whether that is new.
local name, found = R.tenant .. '/' .. R.event, read_event(R.tenant .. '/' .. R.event)
if R.withdraw then
  if not found then return { 'unknown' } end
  local was_given = remove_person(R.tenant, R.event)
  if #found.by > 0 then return { 'held' } end
  if was_given then touch_waiting(R.tenant, 'event:' .. R.event) end
  return { 'withdrawn', table.concat(RELEASED, '\n') }
end
if found and found.person then return { 'seen' } end
if tonumber(redis.call('HGET', P .. 'loops:signals', R.tenant) or '0') >= R.most then return { 'full' } end
redis.call('HINCRBY', P .. 'loops:signals', R.tenant, 1)
-- It stays, also if an item that gave it off runs again.
write_event(name, { at = found and found.at or NOW / 1000, by = found and found.by or {}, person = R.by })
if found then return { 'seen' } end
touch_waiting(R.tenant, 'event:' .. R.event)
return { 'emitted', table.concat(RELEASED, '\n') }
