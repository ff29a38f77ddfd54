-- Compare and set one field of a hash, so that Python can change a value in Redis safely.
local key = P .. R.key
local now = redis.call('HGET', key, R.field) or ''
if now ~= R.old then return { 'changed' } end
if R.new == '' then redis.call('HDEL', key, R.field) else redis.call('HSET', key, R.field, R.new) end
return { 'swapped' }
