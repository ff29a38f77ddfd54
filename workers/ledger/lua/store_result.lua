-- Store a verification's result. The last result also claims the attempt, to settle it.
local key = attempt_key(R.id, R.n)
local i = int(R.index)
local attempt = redis.call('HMGET', key, 'vtoken:' .. i, 'result:' .. i, 'state', 'token')
if attempt[1] ~= R.token then return { 'lost' } end
if attempt[2] then
  -- A repeated call, whose first answer was lost.
  if attempt[4] == R.token then return attempt_view('last', R.id, R.n) end
  return { 'stored' }
end
redis.call('HSET', key, 'result:' .. i, R.result)
raise_schema(R.id)
redis.call('HINCRBYFLOAT', job_key(R.id), 'seconds', R.seconds)
redis.call('ZREM', P .. 'leases', verification_entry(R.id, R.n, R.index))
if redis.call('HINCRBY', key, 'pending', -1) > 0 then
  -- It was the last under way, if the others are parked.
  if redis.call('EXISTS', parked_key('queue:verify')) == 1 then
    show_waiting('v', R.id, R.n, 'pause', 'queue:verify')
  end
  return { 'stored' }
end
if too_new(R.id) then
  -- Another worker's result cannot be read here: a later release settles the attempt.
  local mode, job = redis.call('HGET', key, 'mode'), redis.call('HMGET', job_key(R.id), 'priority', 'pool')
  redis.call('HSET', key, 'state', 'queued', 'token', '', 'claims', 0)
  enqueue(attempt_entry(R.id, R.n), queue_of(mode, job[2]), priority_of(mode, job[1]), NOW)
  return { 'stored' }
end
redis.call('HSET', key, 'state', 'running', 'token', R.token, 'claims', 0,
  'hard_at', stamp(NOW + R.hard_ms))
local tenant = redis.call('HGET', job_key(R.id), 'tenant')
-- Never refused: only settling is left.
take_lease(attempt_entry(R.id, R.n), R.lease_ms, add_slots({}, nil, tenant))
return attempt_view('last', R.id, R.n)
