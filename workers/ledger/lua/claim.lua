-- Take an attempt with a lease and a fencing token, or return the reason why not.
local entry = attempt_entry(R.id, R.n)
local job = redis.call('HMGET', job_key(R.id), 'state', 'deadline_at', 'task_type', 'tenant', 'lane',
  'schema', 'of_loop', 'pool')
local key = attempt_key(R.id, R.n)
local attempt = redis.call('HMGET', key, 'state', 'token', 'claims', 'not_before', 'mode',
  'queued_at', 'runner', 'faults_last', 'output_by', 'started_at', 'shared')
if not job[1] or not attempt[1] then take_entry(entry) return { 'gone' } end
if TERMINAL[job[1]] or attempt[1] == 'settled' then take_entry(entry) return { 'finished' } end
if attempt[1] == 'verifying' then take_entry(entry) return { 'verifying' } end
if attempt[2] and attempt[2] ~= '' then
  -- The same token: a repeated call, whose first answer was lost.
  if attempt[2] == R.token then return attempt_view('claimed', R.id, R.n) end
  if not lapsed(entry) then return { 'held' } end
  if job[7] then charge_unanswered(job[7], entry) end
  redis.call('HSET', key, 'token', '', 'state', 'queued')
  count_unanswered(entry)
end
-- Before the pause: an entry that is not due stays in the outbox.
if attempt[4] and tonumber(attempt[4]) > NOW then return { 'early' } end
if unknown_schema(job[6]) then
  need_room()
  return leave_to_newer(entry, R.id, key)
end
-- The deadline of an item's job counts from the first time that a worker asks for it: perhaps nobody
-- worked for days.
local begins = job[7] and redis.call('HEXISTS', job_key(R.id), 'begun_at') == 0
local function begin()
  if not begins then return end
  local ms = redis.call('HGET', job_key(R.id), 'deadline_ms')
  redis.call('HSET', job_key(R.id), 'begun_at', stamp(NOW), 'deadline_at', stamp(NOW + tonumber(ms)))
end
if tonumber(job[2]) <= NOW and not begins then
  need_room()
  take_entry(entry)
  finish(R.id, job[1], 'escalated', 'deadline', deadline_passed(attempt[8]))
  return { 'escalated', 'deadline' }
end
-- External work stays in its lane until it is answered; no provider is asked for a stored answer.
local asks = not job[5] and not attempt[9]
local gates = attempt_gates(queue_of(attempt[5], job[8]), job[3], job[4],
  asks and provider_of(attempt[7]))
add_item(gates, R.id, job[7], asks)
local why, behind = held_back(entry, gates)
if why then
  need_room()
  begin()
  local lost = redis.call('ZREM', P .. 'leases', entry) == 1
  if job[5] and not attempt[9] then
    if lost then offer(job[5], entry, attempt[5], NOW) end
    set_state(R.id, job[1], 'waiting', why)
  else
    park(entry, behind, why)
  end
  return { WAITS[why], behind }
end
local blame = blame_for(attempt[3], attempt[11])
if blame == 'unclear' then return { 'alone' } end
if blame == 'clear' then
  need_room()
  take_entry(entry)
  finish(R.id, job[1], 'escalated', 'worker_lost',
    string.format('%d workers were lost while running attempt %d', tonumber(attempt[3]), R.n))
  return { 'escalated', 'worker_lost' }
end
-- The first write needs room, too.
take_lease(entry, R.lease_ms, gates, 'state', 'running', 'token', R.token, 'worker', R.worker,
  'claims', tonumber(attempt[3] or '0') + 1, 'shared', shared_mark(), 'claimed_at', stamp(NOW),
  'hard_at', hard_end(attempt[7]), 'started_at', attempt[10] or stamp(NOW))
begin()
if job[7] then redis.call('HDEL', key, 'metered', 'progress') end -- of a claim that was charged
take_entry(entry)
if job[5] then hold(job[5], entry, attempt[5]) end
set_state(R.id, job[1], 'running')
event('attempt', R.id, { attempt = R.n, state = 'running', mode = attempt[5], task_type = job[3],
  tenant = job[4] or nil, waited = NOW - tonumber(attempt[6] or NOW) })
return attempt_view('claimed', R.id, R.n)
