-- Forget a loop that does nothing. The jobs of its items stay as long as other jobs do.
local key = loop_key(R.loop)
local keyed = given(R.key) and loop_key(R.loop, 'key') .. ':' .. R.key
if keyed and redis.call('GET', keyed) == R.digest then return { 'deleted' } end
local state = redis.call('HGET', key, 'state')
if not state then return { 'gone' } end
if state == 'running' or state == 'paused' then return { 'held' } end
-- What a person requeued meanwhile ends with the loop. A worker that still runs a job of it keeps its
-- slot, and reports to no other loop of this name.
local function end_run(id)
  cancel_run(id, 'its loop was deleted')
  redis.call('HDEL', job_key(id), 'of_loop', 'item')
end
for _, id in ipairs(redis.call('ZRANGE', P .. 'loops:live', 0, -1)) do
  if redis.call('HGET', job_key(id), 'of_loop') == R.loop then end_run(id) end
end
local items = redis.call('HGETALL', loop_key(R.loop, 'items'))
for i = 1, #items, 2 do
  local id = string.match(items[i + 1], '^.-|.-|.-|(.-)|')
  redis.call('DEL', P .. item_memory(R.loop, items[i]))
  if id ~= '' and redis.call('EXISTS', job_key(id)) == 1 then end_run(id) end
end
for _, id in ipairs(R.cancel) do cancel_run(id, 'its loop was deleted') end
-- What its items gave off: another loop of this name gives it off when they are done again.
write_outer(R.loop, '', '')
local tenant = redis.call('HGET', key, 'tenant') or ''
for i = 1, #items, 2 do
  withdraw_events(R.loop, items[i], 'its loop was deleted')
  touch_waiting(tenant, R.loop .. '/' .. items[i])
end
for _, part in ipairs({ 'items', 'limits', 'spent', 'reserved', 'ready', 'begun', 'log', 'spec', 'heals', 'emitted',
  'split', 'orders', 'files', 'seen', 'urgent' }) do
  redis.call('DEL', loop_key(R.loop, part))
end
redis.call('HINCRBY', key, 'version', 1)
loop_event(R.loop, { state = 'deleted', by = R.by })
redis.call('DEL', key)
redis.call('ZREM', P .. 'loops', R.loop)
redis.call('SREM', P .. 'loops:active', R.loop)
for i = 1, #items, 2 do redis.call('HDEL', P .. 'loops:denied', R.loop .. '/' .. items[i]) end
drop_entry(loop_entry(R.loop))
-- Its slots are for the others: planning any loop gives them to all.
local other = redis.call('SRANDMEMBER', P .. 'loops:active')
if other then touch_loop(other) end
-- So that the same request again finds that it was done.
if keyed then redis.call('SET', keyed, R.digest, 'PX', int(604800000)) end
return { 'deleted' }
