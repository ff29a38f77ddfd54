-- Add the figures of a batch of events. A batch is taken only if it begins where the last one ended,
-- so that each event counts once, however many workers fold and however often.
local cursor = redis.call('GET', P .. 'folded') or '0-0'
if cursor ~= R.after then return { 'behind', cursor } end

-- A full hash gets no new fields: further values count under their family's `(other)`.
local function add(key, rows)
  local size = redis.call('HLEN', key)
  for _, row in ipairs(rows) do
    local field = row[1]
    if size >= R.fields_cap and redis.call('HEXISTS', key, field) == 0 then field = row[3] end
    if redis.call('HINCRBY', key, field, row[2]) == row[2] then size = size + 1 end
  end
end

-- A bucket expires `ttl_ms` after its end; one that would have expired is not written.
local function add_bucket(name, bucket, step, ttl_ms)
  local left = (bucket.start + step) * 1000 + ttl_ms - NOW
  if left <= 0 then return end
  local number = int(bucket.start / step)
  local key = P .. 'figures:' .. name .. ':' .. number
  add(key, bucket.rows)
  local examples = P .. 'figures:e:' .. number
  for _, example in ipairs(bucket.examples) do
    if redis.call('HLEN', examples) < R.fields_cap
      or redis.call('HEXISTS', examples, example[1]) == 1 then
      redis.call('HSET', examples, example[1], example[2])
    end
  end
  expire(key, left)
  if #bucket.examples > 0 then expire(examples, left) end
end

for _, bucket in ipairs(R.minutes) do add_bucket('m', bucket, 60, R.minutes_ms) end
for _, bucket in ipairs(R.hours) do add_bucket('h', bucket, 3600, R.hours_ms) end
add(P .. 'figures:total', R.total)
redis.call('SET', P .. 'folded', R.last)
return { 'folded', R.last }
