-- Note the files that an item was seen to change and does not declare: from now on it does, and has them
-- alone as far as nobody else has them already. Returns whether that is new.
local record = read_item(R.loop, R.item)
if not record or record.job ~= R.id or record.state ~= 'running' then return { 'gone' } end
if redis.call('HGET', loop_key(R.loop, 'seen'), R.item) == R.seen then return { 'known' } end
redis.call('HSET', loop_key(R.loop, 'seen'), R.item, R.seen)
local text = redis.call('HGET', P .. 'loops:locks', R.id)
local lock = cjson.decode(text or R.lock)
lock.files = cjson.decode(R.all)
redis.call('HSET', P .. 'loops:locks', R.id, cjson.encode(lock))
redis.call('INCR', P .. 'loops:epoch') -- who was to get them now is looked at again
record_decision({ kind = 'undeclared', loop = R.loop, item = R.item, files = cjson.decode(R.new), by = 'coordinator',
  text = R.text })
return { 'declared' }
