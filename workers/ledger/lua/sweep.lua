-- Find what to publish (again): expired leases, entries never published, due delays, entries
-- overtaken by later ones of their queue, and parked entries whose reason has capacity again.
allow_when_full()
-- Redis or the sweep was away for longer than half a lease. A lease may have been renewed a third of it
-- before, so it ends now although its holder lives: nobody could renew, so nobody is dead for
-- that. Every holder gets one more lease to show that it lives. Only a few times in a row: sweeps
-- that are always late must find lost workers, too.
local last = redis.call('MGET', P .. 'swept_at', P .. 'late_sweeps')
local swept, late_sweeps = tonumber(last[1] or ''), tonumber(last[2] or '0')
if swept and NOW - swept <= R.lease_ms / 2 then
  if late_sweeps > 0 then redis.call('DEL', P .. 'late_sweeps') end
elseif late_sweeps < 3 then
  local held = redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', NOW + R.lease_ms)
  for _, entry in ipairs(held) do redis.call('ZADD', P .. 'leases', NOW + R.lease_ms, entry) end
  redis.call('INCR', P .. 'late_sweeps')
end

local empty = {}
for _, queue in ipairs(R.empty) do empty[queue] = true end

-- Each kind of work has its own budget of R.limit, so that none of them delays another.
local publish = {}
local function publish_now(entry, queue, priority)
  if make_due(entry, queue, priority, gates_of(entry)) then
    publish[#publish + 1] = publication(entry, { queue = queue, priority = priority })
  end
end

-- Does a step for an entry. If one of its records has another type, this ends it, not the sweep.
local function guarded(step, entry, ...)
  local done, problem = pcall(step, entry, ...)
  if done then return end
  if parse_intact(entry) then error(problem, 0) end
  redis.call('ZREM', P .. 'leases', entry)
  quarantine(entry, 'unreadable', 'one of its records has another type', 0)
end

for _, entry in ipairs(redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', NOW, 'LIMIT', 0, R.limit)) do
  if not parse_entry(entry) then
    redis.call('ZREM', P .. 'leases', entry)
    quarantine(entry, 'unreadable', 'a lease names no entry', 0)
  end
end

local function expire_lease(entry)
  local kind, id, n, index = parse_entry(entry)
  count_unanswered(entry)
  drop_lease(entry)
  local job = redis.call('HMGET', job_key(id), 'state', 'lane', 'verify_on', 'priority', 'pool', 'of_loop')
  local state, lane = job[1], job[2]
  if kind == 'a' and job[6] then charge_unanswered(job[6], entry) end
  if kind == 'c' then
    local cycle = cycle_of(entry)
    redis.call('HSET', cycle_key(cycle), 'token', '')
    await_verification(id, cycle, job[3] or 'verify', lane, NOW)
  elseif state then
    local key = attempt_key(id, n)
    local mode = redis.call('HGET', key, 'mode')
    local priority = priority_of(mode, job[4])
    redis.call('HSET', key, kind == 'v' and 'vtoken:' .. index or 'token', '')
    if TERMINAL[state] then
      -- The attempt of a cancelled job is not needed, and its worker can no longer write.
      if job[6] and not has_worker(id, n) then leave_slot(id, job[6]) end
    elseif kind == 'v' then
      publish_now(entry, 'verify', priority)
    else
      redis.call('HSET', key, 'state', 'queued')
      set_state(id, state, 'queued')
      if lane and redis.call('HEXISTS', key, 'output') == 0 then
        offer(lane, entry, mode, NOW)
      else
        publish_now(entry, queue_of(mode, job[5]), priority)
      end
    end
    event('attempt', id, { attempt = tonumber(n), state = 'lease_expired' })
  else
    -- The records are no longer kept, so nothing says which provider was asked.
    for _, provider in ipairs(redis.call('SMEMBERS', S .. 'gates')) do
      free_slot('provider:' .. provider, entry)
    end
  end
end
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', NOW, 'LIMIT', 0, R.limit)) do
  guarded(expire_lease, entry)
end

-- Escalates a job whose deadline has passed while it waited. A running attempt may still be reported.
local function end_overdue(id)
  local job = redis.call('HMGET', job_key(id), 'state', 'attempt', 'deadline_at', 'parked_at')
  local fault = job[2] and redis.call('HGET', attempt_key(id, job[2]), 'faults_last')
  if not job[1] or TERMINAL[job[1]] then return end
  -- It may have moved: the time that an item waits for its own loop does not count.
  local waited = job[4] and job[4] ~= '' and NOW - tonumber(job[4]) or 0
  local at = tonumber(job[3]) + waited
  if at > NOW then return await_deadline(id, at) end
  if job[1] == 'running' then return await_deadline(id, NOW + R.republish_ms) end
  drop_entry(attempt_entry(id, job[2]))
  finish(id, job[1], 'escalated', 'deadline', deadline_passed(fault))
  report_to_caller(id)
end

-- Overdue jobs in lanes or parked, and delayed verifications that were never done. Before anything is
-- released: what is overdue now is not run.
for _, late in ipairs(redis.call('ZRANGEBYSCORE', P .. 'stale', '-inf', NOW, 'LIMIT', 0, R.limit)) do
  redis.call('ZREM', P .. 'stale', late)
  local id = string.match(late, '^j:(.*)$')
  local c = redis.call('HMGET', cycle_key(late), 'status', 'job_id')
  if id then
    end_overdue(id)
  elseif c[1] == 'pending_delayed_verification' then
    close_cycle(c[2], late, 'escalated', 'missing_delayed_verification')
  end
end

-- Frees slots without a lease: their records, which named the reason, are no longer kept. They are the
-- oldest ones.
local function free_lost_slots(reason)
  local oldest = redis.call('ZRANGEBYSCORE', active_key(reason), LEASED, '+inf', 'LIMIT', 0, 10)
  for _, entry in ipairs(oldest) do
    if not redis.call('ZSCORE', home_of(entry) .. 'leases', entry) then
      redis.call('ZREM', active_key(reason), entry)
    end
  end
end

-- Releases what is parked, spread over the reasons. They take turns in being the first.
local function release_parked(budget)
  local reasons = redis.call('SMEMBERS', P .. 'parked')
  table.sort(reasons)
  local first = math.floor(NOW / 1000)
  local share = math.max(1, math.floor(budget / math.max(1, #reasons)))
  for i = 1, math.min(#reasons, R.limit) do free_lost_slots(reasons[(first + i) % #reasons + 1]) end
  repeat
    local before = budget
    for i = 1, math.min(#reasons, R.limit) do
      local reason = reasons[(first + i) % #reasons + 1]
      budget = budget - release_behind(reason, math.min(share, budget))
    end
  until budget <= 0 or budget == before
end
release_parked(R.limit)

-- What the claims prove. Partitions share the queues, so the request has the other ones' watermarks.
local watermarks = given(R.watermarks) and R.watermarks or {}
local marks = redis.call('HGETALL', P .. 'watermarks')
for i = 1, #marks, 2 do
  watermarks[marks[i]] = math.max(tonumber(watermarks[marks[i]] or '0'), tonumber(marks[i + 1]))
end

-- Whether the claims of its queue prove that the message of a published entry is gone. A list of the
-- broker is first in, first out: one that was published later and not more urgent was claimed. And a
-- broker that serves by priority takes from a less urgent list only while the more urgent ones are
-- empty: one of those was claimed later, however old it was. Between taking and claiming lies a
-- moment, so half the wait must have passed.
local function band(priority) return math.floor(priority / 3) end
local function overtaken(e)
  for priority = e.priority, 9 do
    local name = watermark(e.queue, priority)
    if tonumber(watermarks[name] or '0') >= e.published + R.republish_ms then return true end
    local claimed = tonumber(watermarks[name .. '|claimed'] or '0')
    if R.by_priority and band(priority) > band(e.priority)
      and claimed >= e.published + R.republish_ms / 2 then
      return true
    end
  end
  return false
end

local function publish_again(entry, e)
  local gates = gates_of(entry)
  if gates then
    local why, behind = held_back(entry, gates)
    if why then return park(entry, behind, why) end
  end
  if e.published > 0 then e.tries = e.tries + 1 else e.published = 0 end
  write_entry(entry, e)
  publish[#publish + 1] = publication(entry, e)
  redis.call('ZADD', P .. 'outbox', due_score(e.priority, NOW + R.grace_ms), entry)
end

local function check_outbox(from, to)
  local found = redis.call('ZRANGEBYSCORE', P .. 'outbox', from, to, 'LIMIT', 0, R.limit)
  for _, entry in ipairs(found) do
    local e, unreadable = read_entry(entry)
    if unreadable or not parse_entry(entry) then
      quarantine(entry, 'unreadable', 'its record cannot be read', 0)
    elseif not e then
      redis.call('ZREM', P .. 'outbox', entry)
    elseif e.published <= 0 or empty[e.queue] or overtaken(e) then
      guarded(publish_again, entry, e)
    else
      check_again(entry, NOW + R.republish_ms)
    end
  end
end
check_outbox('-inf', URGENT + NOW)
check_outbox(0, NOW)
check_outbox(CHECK, CHECK + NOW)

-- Remove ids of expired records from the indexes.
local old = NOW - (R.retention_ms or 604800000)
for state in pairs(TERMINAL) do
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'jobs:' .. state, '-inf', old, 'LIMIT', 0, R.limit)) do
    if redis.call('EXISTS', job_key(id)) == 0 then
      redis.call('ZREM', P .. 'jobs:' .. state, id)
      redis.call('ZREM', P .. 'jobs', id)
    end
  end
end
redis.call('ZREMRANGEBYSCORE', P .. 'cycles', '-inf', NOW - (R.cycle_retention_ms or 34560000000))
local over = redis.call('ZCARD', P .. 'cycles') - (R.cycles_cap or 200000)
if over > 0 then
  for _, id in ipairs(redis.call('ZRANGE', P .. 'cycles', 0, math.min(over, R.limit) - 1)) do
    redis.call('ZREM', P .. 'cycles', id)
    if redis.call('HGET', cycle_key(id), 'ended_at') then redis.call('DEL', cycle_key(id)) end
  end
end
-- Above the cap, delete the oldest ended escalations first, then the oldest.
local kept = NOW - (R.cycle_retention_ms or 34560000000)
local ended = redis.call('ZRANGEBYSCORE', P .. 'escalations:ended', '-inf', kept, 'LIMIT', 0, R.limit)
local many = redis.call('ZCARD', P .. 'escalations') - (R.escalations_cap or 100000)
if many > 0 and #ended == 0 then
  local most = math.min(many, R.limit) - 1
  ended = redis.call('ZRANGE', P .. 'escalations:ended', 0, most)
  if #ended == 0 then ended = redis.call('ZRANGE', P .. 'escalations', 0, most) end
end
for _, eid in ipairs(ended) do
  local e = redis.call('HMGET', P .. 'escalation:' .. eid, 'state', 'signature', 'task_type', 'tenant')
  if e[1] == 'open' then leave_group(eid, e[2], e[3], e[4]) end
  redis.call('DEL', P .. 'escalation:' .. eid)
  redis.call('ZREM', P .. 'escalations', eid)
  redis.call('ZREM', P .. 'escalations:ended', eid)
end
for _, signature in ipairs(redis.call('ZRANGEBYSCORE', P .. 'groups', '-inf', kept, 'LIMIT', 0, R.limit)) do
  if redis.call('EXISTS', P .. 'group:' .. signature) == 0 then
    redis.call('ZREM', P .. 'groups', signature)
  end
end

-- An admitted item that no worker has claimed for ten minutes leaves its slot to a more urgent loop.
local function most_urgent_demand()
  local found = math.huge
  for _, loop in ipairs(redis.call('SMEMBERS', P .. 'loops:active')) do
    if redis.call('EXISTS', loop_key(loop, 'ready')) == 1 then
      found = math.min(found, tonumber(redis.call('HGET', loop_key(loop), 'priority') or '9'))
    end
  end
  return found
end
local function leave_unclaimed(urgency)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'loops:live', '-inf', NOW - 600000)) do
    local job = redis.call('HMGET', job_key(id), 'state', 'attempt', 'of_loop')
    local claims = redis.call('HGET', attempt_key(id, 1), 'claims')
    local priority = job[3] and redis.call('HGET', loop_key(job[3]), 'priority')
    if job[1] == 'queued' and job[2] == '1' and not claims and urgency < tonumber(priority or '0') then
      park(attempt_entry(id, 1), 'slot:' .. job[3], 'slot')
    end
  end
end
if P == S and redis.call('ZCARD', P .. 'loops:live') > 0 then leave_unclaimed(most_urgent_demand()) end

-- A loop that must be planned has a hint in the outbox, unless the hint was lost or dropped. One that
-- runs, or waits for a new day's budget, is looked at every minute in any case, and every other one once
-- a day: its planner keeps the workspaces of its items from expiring.
if P == S then
  for _, loop in ipairs(redis.call('ZRANGE', P .. 'loops', 0, -1)) do
    local seen = redis.call('HMGET', loop_key(loop), 'dirty', 'planned', 'planned_at', 'state', 'paused_by')
    local forgotten = tonumber(seen[1] or '0') > tonumber(seen[2] or '0')
    local active = seen[4] == 'running' or seen[4] == 'waiting' or (seen[4] == 'paused' and seen[5] == 'budget')
    local old = tonumber(seen[3] or '0') < NOW - (active and 60000 or 86400000)
    if (forgotten or old) and not read_entry(loop_entry(loop)) then touch_loop(loop) end
  end
end
redis.call('SET', P .. 'swept_at', stamp(NOW))
for _, text in ipairs(RELEASED) do publish[#publish + 1] = text end
-- The limits are gone if Redis lost them, and others if a worker had another configuration.
local known = (redis.call('HGET', S .. 'limits', 'digest') or '') == R.limits_digest
return { known and 'known' or 'unknown', publish }
