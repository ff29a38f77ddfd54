-- Compare and set one field of a hash: what makes a value kept in Redis safe to change in Python.
-- What changed for people to know is an event of the same step.
local key = P .. R.key
local now = redis.call('HGET', key, R.field) or ''
if now ~= R.old then return { 'changed' } end
if R.new == '' then redis.call('HDEL', key, R.field) else redis.call('HSET', key, R.field, R.new) end
if given(R.told) then event('breaker', '', R.told) end
return { 'swapped' }
