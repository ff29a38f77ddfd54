-- Read how many entries are parked behind each reason, and since when the first of them is queued.

-- Entries are sorted by rank, and within a rank by time: see place_of. Visits the first of each rank.
-- No rank is that far from 0, so a damaged score beyond is not visited: no rank would come after it.
local BOUND = 100 * RANKS
local function first_at(key)
  local first, from = NOW, int(-BOUND)
  while true do
    local found = redis.call('ZRANGEBYSCORE', key, from, int(BOUND), 'WITHSCORES', 'LIMIT', 0, 1)
    if not found[2] then return first end
    local rank = math.floor(tonumber(found[2]) / RANKS)
    first = math.min(first, tonumber(found[2]) - rank * RANKS)
    from = int((rank + 1) * RANKS)
  end
end

local reasons = {}
for _, reason in ipairs(redis.call('SMEMBERS', P .. 'parked')) do
  local key = parked_key(reason)
  local count = redis.call('ZCARD', key)
  if count > 0 then reasons[#reasons + 1] = { reason, count, stamp(first_at(key)) } end
end
return reasons
