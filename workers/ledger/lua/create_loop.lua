-- Register a loop with its items, or answer with the one that has its name already.
local key = loop_key(R.loop)
local found = redis.call('HMGET', key, 'digest', 'state')
if found[2] then return { found[1] == R.digest and 'seen' or 'conflict' } end
if loops_are_full(R.fields.tenant) then return { 'full' } end
redis.call('HSET', key, 'state', 'created', 'since', stamp(NOW), 'created_at', stamp(NOW),
  'version', 1, 'dirty', 0, 'planned', 0, 'share', 0, 'digest', R.digest, 'uid', R.uid)
for field, value in pairs(R.fields) do redis.call('HSET', key, field, value) end
for name, limit in pairs(R.limits) do redis.call('HSET', loop_key(R.loop, 'limits'), name, limit) end
for item, record in pairs(R.items) do write_item(R.loop, item, record) end
redis.call('SET', loop_key(R.loop, 'spec'), R.spec)
redis.call('ZADD', P .. 'loops', NOW, R.loop)
redis.call('SETNX', P .. 'loops:epoch', '0') -- there has been a loop: see alerts.lua
note_in_log(R.loop, 'created', R.by)
loop_event(R.loop, { state = 'created', by = R.by })
declare(R.loop, R.declared)
touch_loop(R.loop)
return { 'created', table.concat(RELEASED, '\n') }
