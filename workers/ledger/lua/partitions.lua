-- Raise the number of partitions, which only grows. The first number, which decides where work with a
-- name lives, never changes: it is the number before the first job was stored. Without the record
-- there is one partition.
local key = P .. 'partitions'
local known = redis.call('HMGET', key, 'first', 'count')
local first, count = tonumber(known[1] or '1'), tonumber(known[2] or '1')
if R.number <= count then return { int(first), int(count) } end
if not known[1] then
  local unused = redis.call('EXISTS', P .. 'jobs') == 0
  first = given(R.first) and R.first or unused and R.number or 1
end
redis.call('HSET', key, 'first', int(first), 'count', int(R.number))
return { int(first), int(R.number) }
