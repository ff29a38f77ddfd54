-- Store an answer, so that it is never requested again. The same step hands out slow verifications,
-- which ends the attempt's lease.
local key = attempt_key(R.id, R.n)
local attempt = redis.call('HMGET', key, 'token', 'output_by', 'mode', 'provider', 'released',
  'report')
local priority = priority_of(attempt[3], R.priority)
local function stored(freed)
  local first = R.verifications[1] and verification_entry(R.id, R.n, R.verifications[1])
  return { 'stored', priority, freed, first and not is_parked(first) and 'due' or '' }
end
if attempt[2] == R.token then
  return other_report(attempt[6]) and { 'other_report' } or stored(attempt[5] or '')
end
if attempt[1] ~= R.token then return { 'lost' } end
keep_answer(R.id, R.n, attempt[3], R)
local entry = attempt_entry(R.id, R.n)
answered(entry, attempt[4], R)
if (attempt[4] or '') ~= '' then free_slot('provider:' .. attempt[4], entry) end
if given(R.report) then
  -- The subject has done its part. If this process dies, a worker settles the answer soon.
  redis.call('ZADD', P .. 'leases', 'XX', NOW + R.lease_ms, entry)
  let_go(redis.call('HGET', job_key(R.id), 'lane'), entry)
end
if #R.verifications == 0 then return stored(keep_released(key, attempt[5])) end
redis.call('HSET', key, 'state', 'verifying', 'token', '', 'pending', #R.verifications,
  'verifications', table.concat(R.verifications, ' '))
drop_lease(entry)
for _, index in ipairs(R.verifications) do
  make_due(verification_entry(R.id, R.n, index), 'verify', priority, { 'queue:verify' })
end
event('attempt', R.id, { attempt = R.n, state = 'verifying' })
return stored(keep_released(key, attempt[5]))
