-- Renew many leases at once. Returns the entries whose lease is lost.
allow_when_full()
local lost = {}
for _, lease in ipairs(R.leases) do
  local kind, id, n, index = parse_entry(lease.entry)
  local key = kind == 'c' and cycle_key(cycle_of(lease.entry)) or attempt_key(id, n)
  local token, hard = 'token', 'hard_at'
  if kind == 'v' then token, hard = 'vtoken:' .. index, 'vhard:' .. index end
  local held = redis.call('HMGET', key, token, hard)
  if held[1] == lease.token and held[2] and tonumber(held[2]) > NOW then
    redis.call('ZADD', P .. 'leases', 'XX', NOW + R.lease_ms, lease.entry)
    if given(lease.metered) then redis.call('HSET', key, 'metered', lease.metered) end
    -- With the time of this clock, from which the worker's ages count.
    if given(lease.progress) then
      redis.call('HSET', key, 'progress', stamp(NOW) .. ' ' .. lease.progress)
    elseif kind == 'a' then
      redis.call('HDEL', key, 'progress')
    end
  else
    lost[#lost + 1] = lease.entry
  end
end
return lost
