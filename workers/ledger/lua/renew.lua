-- Renew many leases at once. Answers with the entries that are no longer ours.
local lost = {}
for _, lease in ipairs(R.leases) do
  local kind, id, n, index = parse_entry(lease.entry)
  local token, hard
  if kind == 'a' then
    local a = redis.call('HMGET', attempt_key(id, n), 'token', 'hard_at')
    token, hard = a[1], a[2]
  elseif kind == 'v' then
    local a = redis.call('HMGET', attempt_key(id, n), 'vtoken:' .. index, 'vhard:' .. index)
    token, hard = a[1], a[2]
  else
    local c = redis.call('HMGET', cycle_key(cycle_of(lease.entry)), 'token', 'hard_at')
    token, hard = c[1], c[2]
  end
  if token == lease.token and hard and tonumber(hard) > NOW then
    redis.call('ZADD', P .. 'leases', 'XX', NOW + R.lease_ms, lease.entry)
  else
    lost[#lost + 1] = lease.entry
  end
end
return lost
