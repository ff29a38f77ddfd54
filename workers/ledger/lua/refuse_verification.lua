-- Count a reported delayed verification as invalid. Its lease continues, so it can be repeated.
local key = cycle_key(R.cycle)
if redis.call('HGET', key, 'token') ~= R.token then return { 'lost' } end
local refused = cjson.decode(redis.call('HGET', key, 'delayed_invalid') or '{}')
refused[R.reason] = (refused[R.reason] or 0) + 1
redis.call('HSET', key, 'delayed_invalid', cjson.encode(refused))
return { 'refused' }
