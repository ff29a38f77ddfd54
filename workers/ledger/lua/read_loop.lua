-- Read a loop in one step: its record, its items and its budget, what all loops ask for, and which
-- slots are taken.
allow_when_full()
local function fields_of(part) return redis.call('HGETALL', loop_key(R.loop, part)) end
local answer = { {}, {}, {}, {}, {}, {}, {} }
-- Ends items that still run although their job has ended: a worker of an earlier release settled it, or
-- the job is gone.
local items = fields_of('items')
for i = 1, #items, 2 do
  local id = string.match(items[i + 1], '^running|.-|.-|(.-)|')
  local job = id and redis.call('HMGET', job_key(id), 'state', 'reason', 'attempt')
  if job and (not job[1] or TERMINAL[job[1]]) then
    end_item(id, job[3] or 1, R.loop, items[i], job[1] or 'cancelled', job[1] and job[2] or 'its job is gone')
  end
end
answer[1] = fields_of()
if #answer[1] == 0 then return answer end
answer[2] = fields_of('items')
answer[3], answer[4], answer[5] = fields_of('limits'), fields_of('spent'), fields_of('reserved')

-- What has begun and waits for a slot, the next one first.
local function waiting_items(loop, most)
  local found = {}
  for i, entry in ipairs(redis.call('ZRANGE', parked_key('slot:' .. loop), 0, most - 1)) do
    local _, id = parse_entry(entry)
    local job = redis.call('HMGET', job_key(id), 'item', 'parked_at')
    found[i] = { id, job[1] or '', job[2] or '0' }
  end
  return found
end
local demands = {}
local active = redis.call('SMEMBERS', P .. 'loops:active')
-- A plan may resume the loop itself.
if redis.call('SISMEMBER', P .. 'loops:active', R.loop) == 0 then active[#active + 1] = R.loop end
for i, loop in ipairs(active) do
  local found = redis.call('HMGET', loop_key(loop), 'priority', 'weight', 'share', 'concurrency', 'version')
  local most = math.min(R.most, tonumber(found[4] or '1')) -- no more of them can get a slot
  demands[i] = { loop, found[1], found[2], found[3], found[4], found[5],
    redis.call('ZRANGE', loop_key(loop, 'ready'), 0, most - 1, 'WITHSCORES'),
    redis.call('HGETALL', loop_key(loop, 'limits')), redis.call('HGETALL', loop_key(loop, 'spent')),
    redis.call('HGETALL', loop_key(loop, 'reserved')), waiting_items(loop, most),
    redis.call('SCARD', loop_key(loop, 'begun')) }
end
answer[6] = { redis.call('GET', P .. 'loops:epoch') or '0', redis.call('GET', P .. 'loops:slots') or '',
  redis.call('HGETALL', P .. 'loops:lines'), live_items(), demands }
answer[7] = redis.call('HVALS', loop_key(R.loop, 'heals'))
return answer
