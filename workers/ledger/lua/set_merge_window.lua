-- Set how many merges of a loop are made at once, unless another merger has set it meanwhile.
local key = loop_key(R.loop)
local found = redis.call('HMGET', key, 'state', 'merge_window')
if not found[1] or tonumber(found[2] or R.start) ~= R.old then return { 'changed' } end
redis.call('HSET', key, 'merge_window', int(R.new))
return { 'set' }
