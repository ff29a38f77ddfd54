-- Give an event off for a person or another system, or take it back. Returns whether that is new.
if R.withdraw then
  local name = R.tenant .. '/' .. R.event
  local found = read_event(name)
  if not found then return { 'unknown' } end
  if redis.call('EXISTS', emitters_key(name)) == 1 then return { 'held' } end
  remove_person(name, found)
  touch_waiting(R.tenant, 'event:' .. R.event)
  return { 'withdrawn', table.concat(RELEASED, '\n') }
end
if signals_left(R.account, R.tenant, { R.event }) < 0 then return { 'full' } end
if not signal_event(R.tenant, R.event, R.by, R.account) then return { 'seen' } end
return { 'emitted', table.concat(RELEASED, '\n') }
