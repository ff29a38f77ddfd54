-- Read what is known about the providers: name, fields, the limit in force, calls in flight, entries
-- that wait in all partitions, tokens a minute, those of the last one, and whether such a limit holds
-- calls back. One that was not called for a week is forgotten.
local found = {}
for _, provider in ipairs(redis.call('SMEMBERS', S .. 'gates')) do
  local gate = read_learned('HGETALL', provider)
  local learned = redis.call('HMGET', gate_key(provider), 'limit', 'credits')
  local calls, tokens = configured_limits(provider)
  local limit = limit_of(tonumber(learned[1] or ''), calls)
  if (tonumber(learned[2] or '') or 0) > 0 then limit = 1 end
  local in_flight = slots_taken('provider:' .. provider)
  local minute = read_minute(provider)
  local per_minute = token_limit(minute, tokens)
  local used_up = rate_capacity(minute, tokens, in_flight) <= 0
  local parked = 0
  for _, prefix in ipairs(prefixes()) do
    parked = parked + redis.call('ZCARD', prefix .. 'parked:provider:' .. provider)
  end
  found[#found + 1] = { provider, gate, int(limit), in_flight, parked,
    per_minute and int(per_minute) or '', int(minute.used), used_up and 1 or 0 }
end
return { found, stamp(NOW) }
