-- Take, renew, release or check the lease of a record: its field `lease`, `token expires`.
local key = P .. R.key
local token, expires = string.match(redis.call('HGET', key, 'lease') or '', '^(%S+) (%S+)$')
if R.verb == 'look' then return { expired(expires) and 'free' or 'held' } end
if token ~= R.token then
  if R.verb ~= 'take' then return { 'lost' } end
  if not expired(expires) and not R.force then return { 'held' } end
end
if R.verb == 'release' then
  redis.call('HDEL', key, 'lease')
else
  redis.call('HSET', key, 'lease', R.token .. ' ' .. string.format('%.0f', NOW + R.lease_ms))
end
return { 'ours' }
