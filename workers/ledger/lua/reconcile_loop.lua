-- Find the items of a loop that are listed as running although nothing is left that would run them: no
-- lease, no entry in the outbox and none that is parked. What can go on is queued again; an item whose
-- records are gone ends. Returns what was done, and what to publish.
allow_when_full()
local done = {}
local function note(item, id, text)
  note_in_log(R.loop, item .. ': ' .. text, 'monitor')
  event('item', id, { loop = R.loop, item = item, state = 'running', reconciled = text })
  done[#done + 1] = item .. '|' .. text
end

local function is_under_way(entry)
  if redis.call('ZSCORE', P .. 'leases', entry) then return true end
  local behind = redis.call('HGET', P .. 'parked_behind', entry)
  if behind then return redis.call('ZSCORE', parked_key(behind), entry) end
  return redis.call('ZSCORE', P .. 'outbox', entry) and read_entry(entry)
end

-- Whether the attempt, or what is left of its verification, will go on by itself.
local function goes_on(id, n)
  if is_under_way(attempt_entry(id, n)) then return true end
  local pending, lost = 0, 0
  each_pending(id, n, function(entry)
    pending = pending + 1
    if not is_under_way(entry) then lost = lost + 1 end
  end)
  return pending > 0 and lost == 0
end

local function queue_again(id, n, job)
  local entry, key = attempt_entry(id, n), attempt_key(id, n)
  local mode = redis.call('HGET', key, 'mode')
  local priority, verifies = priority_of(mode, job.priority), false
  each_pending(id, n, function(pending)
    verifies = true
    if is_under_way(pending) then return end
    local _, _, _, index = parse_entry(pending)
    leave_parking(pending)
    redis.call('HSET', key, 'vtoken:' .. index, '')
    enqueue(pending, 'verify', priority, NOW)
  end)
  if verifies then return end
  -- As when a lease expires: its worker can no longer write, and is charged for.
  count_unanswered(entry)
  charge_unanswered(R.loop, entry)
  leave_parking(entry)
  redis.call('HSET', key, 'token', '', 'state', 'queued')
  set_state(id, job.state, 'queued')
  enqueue(entry, queue_of(mode, job.pool), priority, NOW)
end

local function reconcile(item, id)
  local row = redis.call('HMGET', job_key(id), 'state', 'reason', 'attempt', 'priority', 'pool')
  local job = { state = row[1], n = row[3] or '1', priority = row[4], pool = row[5] }
  if not job.state or TERMINAL[job.state] then
    end_item(id, job.n, R.loop, item, job.state or 'cancelled', job.state and row[2] or 'its job is gone')
    return note(item, id, job.state and 'its job had ended' or 'its job is gone')
  end
  if redis.call('EXISTS', attempt_key(id, job.n)) == 0 then
    drop_entry(attempt_entry(id, job.n))
    finish(id, job.state, 'escalated', 'tool_error', 'the record of its attempt is gone')
    return note(item, id, 'the record of its attempt is gone')
  end
  if goes_on(id, job.n) then return end
  queue_again(id, job.n, job)
  note(item, id, 'nothing ran although it was listed as running; it is queued again')
end

for _, item in ipairs(redis.call('SMEMBERS', loop_key(R.loop, 'begun'))) do
  local record = read_item(R.loop, item)
  if record and record.state == 'running' then reconcile(item, record.job) end
end
return { table.concat(done, '\n'), table.concat(RELEASED, '\n') }
