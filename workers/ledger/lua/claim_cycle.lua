-- Take the delayed verification of a cycle: check the stored answer again, or do the task again in
-- another formulation.
local entry = 'c:' .. R.cycle
local key = cycle_key(R.cycle)
local cycle = redis.call('HMGET', key, 'status', 'token', 'claims', 'job_id', 'due_at', 'output',
  'first_due_at', 'shared')
if not cycle[1] then take_entry(entry) return { 'gone' } end
if cycle[1] ~= 'pending_delayed_verification' then take_entry(entry) return { 'finished' } end
local id = cycle[4]
local job = redis.call('HMGET', job_key(id), 'state', 'best', 'lane', 'verify_on')
local function claimed()
  local answer = attempt_view('claimed', id, tonumber(job[2]))
  local asked = redis.call('HMGET', key, 'faults', 'provider')
  answer[9], answer[12] = asked[1] or '0', asked[2] or ''
  answer[13] = cycle[6] or ''
  return answer
end
if cycle[2] ~= R.token then need_room() end
if cycle[2] and cycle[2] ~= '' then
  -- The same token: a repeated call, whose first answer was lost.
  if cycle[2] == R.token then return claimed() end
  if not lapsed(entry) then return { 'held' } end
  count_unanswered(entry)
end
if tonumber(cycle[5]) > NOW then return { 'early' } end
-- Staleness counts from the first due time, however often the entry was given back.
local stale = NOW - tonumber(cycle[7] or cycle[5]) > R.stale_ms
if too_new(id) and not stale then return leave_to_newer(entry, id, key) end
local queue = job[4] or 'verify'
local gates = queue == 'lane' and {} or cycle_gates(queue, id, job[2], cycle[6])
local why, behind = held_back(entry, gates)
if why then
  park(entry, behind, why)
  return { WAITS[why], behind }
end
local blame = blame_for(cycle[3], cycle[8])
if blame == 'unclear' and not stale then return { 'alone' } end
take_entry(entry)
if not TERMINAL[job[1]] and job[1] then
  -- The job is still being repaired: try again after another delay.
  redis.call('HSET', key, 'due_at', stamp(NOW + R.postpone_ms))
  await_verification(id, R.cycle, queue, job[3], NOW + R.postpone_ms)
  return { 'early' }
end
local claims = tonumber(cycle[3] or '0')
if stale or blame == 'clear' or not job[2] then
  local reason = stale and 'missing_delayed_verification' or 'worker_lost'
  close_cycle(id, R.cycle, 'escalated', reason)
  return { 'escalated', reason }
end
-- To ask again takes as long as an attempt; to check again does not.
local runner = queue ~= 'verify' and redis.call('HGET', attempt_key(id, job[2]), 'runner')
redis.call('HSET', key, 'token', R.token, 'claims', claims + 1, 'shared', shared_mark(), 'checks', job[2],
  'hard_at', hard_end(runner))
take_lease(entry, R.lease_ms, gates)
if queue == 'lane' then hold(job[3], entry) end
return claimed()
