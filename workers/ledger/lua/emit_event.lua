-- Give an event off for a person or another system. Returns whether it was not there yet.
local name = R.tenant .. '/' .. R.event
if redis.call('HEXISTS', P .. 'loops:events', name) == 1 then
  add_emitter(name, R.by) -- it stays, also if an item that gave it off runs again
  return { 'seen' }
end
if redis.call('HLEN', P .. 'loops:events') >= R.most then return { 'full' } end
add_emitter(name, R.by)
touch_waiting(R.tenant, 'event:' .. R.event)
return { 'emitted', table.concat(RELEASED, '\n') }
