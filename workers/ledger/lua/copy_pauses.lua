-- Make the pauses of a partition those of the first one, except what changed since they were read.
allow_when_full()
local function unchanged(name)
  return (redis.call('HGET', P .. 'paused', name) or nil) == R.seen[name]
end

for name, since in pairs(R.pauses) do
  if R.seen[name] ~= since and unchanged(name) then redis.call('HSET', P .. 'paused', name, since) end
end
for name in pairs(R.seen) do
  if not R.pauses[name] and unchanged(name) then redis.call('HDEL', P .. 'paused', name) end
end
return { 'copied' }
