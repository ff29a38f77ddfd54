-- Take one slow verification of an attempt.
local entry = verification_entry(R.id, R.n, R.index)
local state = redis.call('HGET', job_key(R.id), 'state')
local key = attempt_key(R.id, R.n)
local i = int(R.index)
local attempt = redis.call('HMGET', key, 'state', 'result:' .. i, 'vtoken:' .. i, 'vclaims:' .. i,
  'vnot_before:' .. i, 'verifications', 'vshared:' .. i)
if not state or not attempt[1] then take_entry(entry) return { 'gone' } end
if TERMINAL[state] or attempt[1] ~= 'verifying' or attempt[2] then
  take_entry(entry)
  return { 'finished' }
end
-- A message may name anything.
if not string.find(' ' .. (attempt[6] or '') .. ' ', ' ' .. i .. ' ', 1, true) then return { 'gone' } end
if attempt[3] ~= R.token then need_room() end
if attempt[3] and attempt[3] ~= '' then
  if attempt[3] == R.token then return attempt_view('claimed', R.id, R.n) end
  if not lapsed(entry) then return { 'held' } end
  redis.call('HSET', key, 'vtoken:' .. i, '')
end
if attempt[5] and tonumber(attempt[5]) > NOW then return { 'early' } end
if too_new(R.id) then return leave_to_newer(entry, R.id, key) end
local gates = verification_gates(R.id, R.n, R.index)
local why, behind = held_back(entry, gates)
if why then
  park(entry, behind, why)
  return { WAITS[why], behind }
end
local blame = blame_for(attempt[4], attempt[7])
if blame == 'unclear' then return { 'alone' } end
take_entry(entry)
if blame == 'clear' then
  finish(R.id, state, 'escalated', 'worker_lost',
    string.format('%d workers were lost while verifying attempt %d', tonumber(attempt[4]), R.n))
  return { 'escalated', 'worker_lost' }
end
redis.call('HSET', key, 'vshared:' .. i, shared_mark(), 'vtoken:' .. i, R.token,
  'vclaims:' .. i, tonumber(attempt[4] or '0') + 1,
  'vhard:' .. i, stamp(NOW + R.hard_ms))
take_lease(entry, R.lease_ms, gates)
if state == 'waiting' then set_state(R.id, state, 'running') end
return attempt_view('claimed', R.id, R.n)
