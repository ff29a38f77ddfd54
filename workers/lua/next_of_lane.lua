-- What a subject is to do next: what it holds already, with its token, or the first that is due.
local lane = P .. 'lane:' .. R.lane
local function parts(entry)
  return string.match(entry, '^(%a):([^/:]+)[/:](%d+)[/:]?(%d*)$')
end
local function token_of(entry)
  local kind, id, n = parts(entry)
  if kind == 'c' then return redis.call('HGET', cycle_key(string.sub(entry, 3)), 'token') end
  return redis.call('HGET', attempt_key(id, n), 'token')
end
local held = redis.call('HGET', P .. 'holding', R.lane)
if held then
  local token, lease = token_of(held), redis.call('ZSCORE', P .. 'leases', held)
  if token and token ~= '' and lease and tonumber(lease) > NOW then
    return { 'held', held, token, lease }
  end
  redis.call('HDEL', P .. 'holding', R.lane)
end
for rank = 0, 3 do
  local first = rank * 1e14
  while true do
    local found = redis.call('ZRANGEBYSCORE', lane, first, stamp(first + NOW), 'LIMIT', 0, 1)
    if #found == 0 then break end
    local kind, id, n = parts(found[1])
    local state = redis.call('HGET', job_key(id), 'state')
    local waits = kind == 'c' or (state and not TERMINAL[state]
      and redis.call('HGET', attempt_key(id, n), 'state') == 'queued')
    if waits then return { 'next', found[1] } end
    redis.call('ZREM', lane, found[1]) -- its job has ended, or is gone
  end
end
return { 'none' }
