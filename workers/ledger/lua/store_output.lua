-- Store an answer, so that it is never requested again. The same step hands out slow verifications,
-- which ends the attempt's lease.
local key = attempt_key(R.id, R.n)
local attempt = redis.call('HMGET', key, 'token', 'output_by', 'mode', 'provider', 'released')
local priority = priority_of(attempt[3], R.priority)
local function stored(freed)
  local first = R.verifications[1] and verification_entry(R.id, R.n, R.verifications[1])
  return { 'stored', priority, freed, first and not is_parked(first) and 'due' or '' }
end
if attempt[2] == R.token then return stored(attempt[5] or '') end
if attempt[1] ~= R.token then return { 'lost' } end
redis.call('HSET', key, 'output', R.output, 'output_by', R.token,
  'output_at', stamp(NOW), 'provider', '')
raise_schema(R.id)
answered(attempt[4], R.provider_wait_ms)
if (attempt[4] or '') ~= '' then free_slot('provider:' .. attempt[4], attempt_entry(R.id, R.n)) end
if given(R.tokens) then spend(R.id, R.tokens) end
if given(R.seconds) then
  redis.call('HINCRBYFLOAT', job_key(R.id), 'seconds', R.seconds)
  if attempt[3] ~= 'initial' then
    redis.call('HINCRBYFLOAT', job_key(R.id), 'repair_seconds', R.seconds)
  end
end
if #R.given > 0 then
  -- The results came with the answer; settling reads them.
  local places = {}
  for i, result in ipairs(R.given) do
    places[i] = int(i - 1)
    redis.call('HSET', key, 'result:' .. places[i], result)
  end
  redis.call('HSET', key, 'verifications', table.concat(places, ' '))
end
if #R.verifications == 0 then return stored(keep_released(key, attempt[5])) end
redis.call('HSET', key, 'state', 'verifying', 'token', '', 'pending', #R.verifications,
  'verifications', table.concat(R.verifications, ' '))
drop_lease(attempt_entry(R.id, R.n))
for _, index in ipairs(R.verifications) do
  make_due(verification_entry(R.id, R.n, index), 'verify', priority, { 'queue:verify' })
end
event('attempt', R.id, { attempt = R.n, state = 'verifying' })
return stored(keep_released(key, attempt[5]))
