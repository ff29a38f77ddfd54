-- Compare and set one field of a hash: what makes a value kept in Redis safe to change in Python.
-- An event that tells people of the change is written in the same step.
local key = P .. R.key
local now = redis.call('HGET', key, R.field) or ''
if now ~= R.old then return { 'changed' } end
if R.new == '' then redis.call('HDEL', key, R.field) else redis.call('HSET', key, R.field, R.new) end
if given(R.event) then event('breaker', '', R.event) end
return { 'swapped' }
