-- Count a reported delayed verification as invalid. Its lease continues, so it can be repeated.
-- Each call has a token, because one lease may be refused several times.
local key = cycle_key(R.cycle)
local cycle = redis.call('HMGET', key, 'token', 'refused_by')
if cycle[1] ~= R.token then return { 'lost' } end
if cycle[2] == R.call then return { 'refused' } end -- a repeated call, whose first answer was lost
local invalid = cjson.decode(redis.call('HGET', key, 'delayed_invalid') or '{}')
invalid[R.reason] = (invalid[R.reason] or 0) + 1
redis.call('HSET', key, 'delayed_invalid', cjson.encode(invalid), 'refused_by', R.call)
return { 'refused' }
