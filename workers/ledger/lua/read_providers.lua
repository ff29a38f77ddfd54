-- Read what is known about the providers: name, fields, the limit in force, calls in flight, and
-- entries that wait in all partitions. One that was not called for a week is forgotten.
local found = {}
for _, provider in ipairs(redis.call('SMEMBERS', S .. 'gates')) do
  local gate = read_learned('HGETALL', provider)
  local learned = tonumber(redis.call('HGET', gate_key(provider), 'limit') or '')
  local in_flight = slots_taken('provider:' .. provider)
  local parked = 0
  for _, prefix in ipairs(prefixes()) do
    parked = parked + redis.call('ZCARD', prefix .. 'parked:provider:' .. provider)
  end
  found[#found + 1] = { provider, gate, int(limit_of(learned, configured_limit(provider))), in_flight, parked }
end
return { found, stamp(NOW) }
