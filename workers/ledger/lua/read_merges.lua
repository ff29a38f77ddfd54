-- Read what a merge may be made with: the group of its item, the loop's window, and the other merges of
-- the group that have begun and that nobody makes, the one that waits longest first. What has a lease is
-- left to its worker. A merge that has lost a worker may have ended it: it is made alone, so that it ends no
-- other one, and nothing else is blamed for it.
allow_when_full()
local _, own, number, own_index = parse_entry(R.entry)
local job = redis.call('HMGET', job_key(own), 'of_loop', 'merge_group')
if not job[1] then return { '', '', {} } end
local found = {}
local claims = tonumber(redis.call('HGET', attempt_key(own, number), 'vclaims:' .. own_index) or '0')
local begun = claims > 1 and {} or redis.call('SMEMBERS', loop_key(job[1], 'begun'))
for _, item in ipairs(begun) do
  local record = read_item(job[1], item)
  local id = record and record.job or ''
  local other = redis.call('HMGET', job_key(id), 'state', 'attempt')
  if id ~= own and other[1] and not TERMINAL[other[1]] and merge_gate(id) == merge_gate(own) then
    local attempt = redis.call('HMGET', attempt_key(id, other[2]), 'state', 'merge', 'merge_begun_at')
    local index = attempt[1] == 'verifying' and attempt[2]
    local entry = index and verification_entry(id, other[2], index)
    if entry and redis.call('HEXISTS', attempt_key(id, other[2]), 'result:' .. index) == 0
      and tonumber(redis.call('HGET', attempt_key(id, other[2]), 'vclaims:' .. index) or '0') == 0
      and not redis.call('ZSCORE', P .. 'leases', entry) then
      found[#found + 1] = { entry, tonumber(attempt[3] or '0') }
    end
  end
end
table.sort(found, function(one, other)
  if one[2] ~= other[2] then return one[2] < other[2] end
  return one[1] < other[1]
end)
local entries = {}
for i = 1, math.min(#found, R.most) do entries[i] = found[i][1] end
return { job[2] or '', redis.call('HGET', loop_key(job[1]), 'merge_window') or '', entries }
