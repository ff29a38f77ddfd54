-- Read what is known about the providers: name, fields, the limit in force, calls in flight, and
-- entries that wait. One that was not called for a week is forgotten.
local found = {}
for _, provider in ipairs(redis.call('SMEMBERS', P .. 'gates')) do
  local gate = read_learned('HGETALL', provider)
  local learned = tonumber(redis.call('HGET', gate_key(provider), 'limit') or '')
  local in_flight = slots_taken('provider:' .. provider)
  local parked = redis.call('ZCARD', parked_key('provider:' .. provider))
  found[#found + 1] = { provider, gate, int(limit_of(learned, configured_limit(provider))), in_flight, parked }
end
return { found, stamp(NOW) }
