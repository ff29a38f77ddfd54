-- Shared by the scripts, after prelude.lua: what may hold an entry back, where it waits, and what
-- releases it. There is one mechanism for pauses, quotas, breakers and limits of providers: an entry
-- is parked behind a reason (`queue:NAME`, `task_type:NAME`, `provider:NAME`, `quota:TENANT`) and
-- released when the reason has capacity again. docs/decisions/0019-one-way-to-wait.md says why.

-- `active:<reason>` holds the entries that take a slot: a leased one with LEASED + the time of its
-- claim, a released one with the time at which its reservation expires.
local LEASED = 1e15
local RESERVED_MS = 15000
-- Released entries that one freed slot may cause: more than one if the limit has grown, too.
local AT_ONCE = 20
-- Parked entries are sorted by rank, then by arrival: first what a provider refused, then retries,
-- then by the job's priority.
local RANKS = 1e13
-- How a claim is refused, by what its job waits for.
local WAITS = { pause = 'paused', budget = 'over_quota', breaker = 'provider_busy',
  provider = 'provider_busy', credits = 'provider_busy', slot = 'no_slot' }
-- Publications of the entries that this script has released, for its caller to publish.
local RELEASED = {}

local function active_key(reason) return S .. 'active:' .. reason end
local function parked_key(reason) return P .. 'parked:' .. reason end
local function gate_key(provider) return S .. 'provider:' .. provider end
-- Reads what was learned about a provider; a record of another type is nothing learned.
local function read_learned(command, provider, ...)
  local read, found = pcall(redis.call, command, gate_key(provider), ...)
  if read then return found end
  redis.call('DEL', gate_key(provider))
  return redis.call(command, gate_key(provider), ...)
end
local function record_key(entry)
  local kind, id, n = parse_entry(entry)
  return kind == 'c' and cycle_key(cycle_of(entry)) or attempt_key(id, n)
end

-- -- partitions -----------------------------------------------------------------------------------

local PREFIXES
-- Returns the prefixes of the partitions that the caller knows.
local function prefixes()
  if PREFIXES then return PREFIXES end
  PREFIXES = {}
  for n = 1, R.partitions or 1 do
    PREFIXES[n] = string.gsub(S, '{p00}:$', string.format('{p%02d}:', n - 1))
  end
  return PREFIXES
end

-- Returns the prefix of the partition that an entry lives in.
local function home_of(entry)
  local partition = string.match(entry, '^%a:(p%d+)%-')
  return partition and string.gsub(S, '{p00}:$', '{' .. partition .. '}:') or P
end

-- Does a step as a script of another partition would.
local function within(prefix, step, ...)
  if prefix == P then return step(...) end
  local own = P
  P = prefix
  local done, result = pcall(step, ...)
  P = own
  if not done then error(result, 0) end
  return result
end

-- -- slots ----------------------------------------------------------------------------------------

local function slots_taken(reason)
  return redis.call('ZCOUNT', active_key(reason), '(' .. stamp(NOW), '+inf')
end

local function has_slot(reason, entry)
  return not expired(redis.call('ZSCORE', active_key(reason), entry))
end

local function quota_capacity(tenant)
  local found = redis.call('HMGET', S .. 'limits', 'tenant:' .. tenant, 'tenant:*')
  local concurrency, tokens = string.match(found[1] or found[2] or '|', '^(%d*)|(%d*)$')
  concurrency, tokens = tonumber(concurrency or ''), tonumber(tokens or '')
  if tokens and tonumber(redis.call('GET', spent_key(tenant)) or '0') >= tokens then
    return 0, 'budget', true
  end
  if not concurrency then return nil end
  return concurrency - slots_taken('quota:' .. tenant), 'budget'
end

-- Returns the calls at once and the tokens a minute that are configured.
local function configured_limits(provider)
  local found = redis.call('HMGET', S .. 'limits', 'provider:' .. provider, 'tokens:' .. provider)
  return tonumber(found[1] or ''), tonumber(found[2] or '')
end
-- Returns the calls that a provider may have in flight: what was learned, at most what is configured.
-- Before anything was learned, what is configured is the best guess.
local function limit_of(learned, configured)
  return math.min(learned or configured or R.start_limit, configured or math.huge)
end

-- Returns the calls that try a provider that is out of credits: those from before that moment, which
-- may be hours of an agent's work, are not waited for.
local function probes(provider, since)
  local key, leased = active_key('provider:' .. provider), LEASED + since
  return redis.call('ZCOUNT', key, '(' .. stamp(NOW), '(' .. stamp(LEASED))
    + redis.call('ZCOUNT', key, '(' .. stamp(leased), '+inf')
end

local function provider_capacity(provider)
  local gate = read_learned('HMGET', provider, 'opens_at', 'why', 'limit', 'openings', 'credits', 'credits_at',
    'rated')
  -- A damaged number counts as missing.
  local unpaid = (tonumber(gate[5] or '') or 0) > 0
  if (tonumber(gate[1] or '') or 0) > NOW then return 0, unpaid and 'credits' or gate[2] or 'provider', true end
  if unpaid then return 1 - probes(provider, tonumber(gate[6] or '') or 0), 'credits' end
  local calls, tokens = configured_limits(provider)
  local limit, taken = limit_of(tonumber(gate[3] or ''), calls), slots_taken('provider:' .. provider)
  local why = (tonumber(gate[4] or '') or 0) > 0 and 'breaker' or 'provider'
  if not tokens and not gate[7] then return limit - taken, why end
  return math.min(limit - taken, rate_capacity(read_minute(provider), tokens, taken)), why
end

-- Returns how many entries may start behind a reason (nil without a limit), what their jobs wait for
-- otherwise, and whether it is closed even for those that have a slot.
local function capacity(reason)
  if redis.call('HEXISTS', P .. 'paused', reason) == 1 then return 0, 'pause', true end
  local kind, name = string.match(reason, '^([%a_]+):(.*)$')
  if kind == 'quota' then return quota_capacity(name) end
  if kind == 'provider' then return provider_capacity(name) end
  if is_of_loop(reason) then return loop_capacity(kind, name) end
end

-- -- what may hold an entry back ------------------------------------------------------------------

-- Returns the runner of a later attempt: the same, or the one of its fallbacks that the plan names.
local function runner_of(runner, fallback)
  local own = string.match(runner or '', '^[^#]*')
  return (own == '' or fallback == 0) and own or own .. '#' .. int(fallback)
end

-- Returns when a claim of this runner ends, however often it is renewed. The profile of an agent may
-- have its own limit.
local function hard_end(runner)
  local own = given(R.hard_ms_of) and R.hard_ms_of[runner_of(runner, 0)]
  return stamp(NOW + (own or R.hard_ms))
end

-- Which provider a runner asks is known once a worker has named it: see name_provider.lua.
local function provider_of(runner)
  if not runner or runner == '' then return nil end
  return redis.call('HGET', P .. 'providers', runner) or nil
end

-- Adds what has slots to a list of reasons, which then names the provider and the tenant, too.
local function add_slots(gates, provider, tenant)
  if provider and provider ~= '' then
    gates[#gates + 1], gates.provider = 'provider:' .. provider, provider
  end
  if tenant and tenant ~= '' then gates[#gates + 1], gates.tenant = 'quota:' .. tenant, tenant end
  return gates
end

local function attempt_gates(queue, task_type, tenant, provider)
  return add_slots({ 'queue:' .. queue, 'task_type:' .. (task_type or '') }, provider, tenant)
end

-- A delayed verification asks a provider only for a new answer, which it then stores.
local function cycle_gates(queue, id, best, output)
  local asks = queue ~= 'verify' and queue ~= 'lane' and best and not output
  return add_slots({ 'queue:' .. queue },
    asks and provider_of(redis.call('HGET', attempt_key(id, best), 'runner')))
end

-- One merge of a group of items is made at a time: see policies/loops/merge_groups.py. Returns the reason
-- behind which the others wait; nil for a job of no loop.
local function merge_gate(id)
  local job = redis.call('HMGET', job_key(id), 'of_loop', 'merge_group')
  local group = job[2] or ''
  return job[1] and 'merge:' .. job[1] .. (group ~= '' and '/' .. group or '') or nil
end
local function verification_gates(id, n, index)
  local gates = { 'queue:verify' }
  if redis.call('HGET', attempt_key(id, n), 'merge') == int(index) then gates.merge = merge_gate(id) end
  return gates
end

-- Returns the reasons that may hold an entry back; nil if there is nothing left to run.
local function gates_of(entry)
  local kind, id, n, index = parse_entry(entry)
  if kind == 'd' or kind == 'l' then return {} end
  if kind == 'v' then return verification_gates(id, n, index) end
  if kind == 'c' then
    local job = redis.call('HMGET', job_key(id), 'verify_on', 'best')
    local output = redis.call('HEXISTS', record_key(entry), 'output') == 1
    return cycle_gates(job[1] or 'verify', id, job[2], output)
  end
  local job = redis.call('HMGET', job_key(id), 'state', 'task_type', 'tenant', 'of_loop', 'pool')
  if not job[1] or TERMINAL[job[1]] then return nil end
  local key = attempt_key(id, n)
  local attempt = redis.call('HMGET', key, 'mode', 'runner')
  local has_output = redis.call('HEXISTS', key, 'output') == 1
  local gates = attempt_gates(queue_of(attempt[1], job[5]), job[2], job[3],
    not has_output and provider_of(attempt[2]))
  return add_item(gates, id, job[4], not has_output)
end

-- Returns what an entry waits for and the reason to park it behind; nil if it may start. One that
-- has a slot may, unless the reason has closed meanwhile.
local function held_back(entry, gates)
  if #gates == 0 then return nil end
  local paused = redis.call('HMGET', P .. 'paused', unpack(gates))
  for i, reason in ipairs(gates) do
    if paused[i] then return 'pause', reason end
  end
  local function full(reason, free, why, closed)
    return free and free <= 0 and (closed or not has_slot(reason, entry)) and why
  end
  local provider, tenant = gates.provider, gates.tenant
  local why = provider and full('provider:' .. provider, provider_capacity(provider))
  if why then return why, 'provider:' .. provider end
  why = tenant and full('quota:' .. tenant, quota_capacity(tenant))
  if why then return why, 'quota:' .. tenant end
  if gates.merge and full(gates.merge, loop_capacity('merge', string.match(gates.merge, ':(.*)$'))) then
    return 'slot', gates.merge
  end
  if gates.loop then return held_by_loop(entry, gates) end
end

-- Takes a slot behind each reason. `in_flight` is how many calls a provider then has. The caller may
-- add fields to the record of the entry.
local function take_slots(entry, gates, score, ...)
  FREED[entry] = nil
  if gates.loop and gates.spends then
    local allowance = reserve_budget(gates.loop, entry)
    if allowance then redis.call('HSET', record_key(entry), 'allowance', allowance) end
  end
  if gates.tenant then redis.call('ZADD', active_key('quota:' .. gates.tenant), score, entry) end
  if gates.merge then redis.call('ZADD', active_key(gates.merge), score, entry) end
  if gates.provider then
    local reason = 'provider:' .. gates.provider
    redis.call('ZADD', active_key(reason), score, entry)
    redis.call('HSET', record_key(entry), 'provider', gates.provider, 'in_flight', slots_taken(reason), ...)
  elseif select('#', ...) > 0 then
    redis.call('HSET', record_key(entry), ...)
  end
end

local function take_lease(entry, ms, gates, ...)
  redis.call('ZADD', P .. 'leases', NOW + ms, entry)
  take_slots(entry, gates, LEASED + NOW, ...)
end

-- -- parking and releasing ------------------------------------------------------------------------

-- Where an entry is sorted behind its reason.
local function place_of(kind, id, n, at_front)
  if kind ~= 'a' then return NOW end
  local attempt = redis.call('HMGET', attempt_key(id, n), 'queued_at', 'mode')
  local rank = -1
  if at_front then
    rank = -2
  elseif attempt[2] == 'initial' then
    rank = tonumber(redis.call('HGET', job_key(id), 'priority'))
  end
  return rank * RANKS + tonumber(attempt[1] or NOW)
end

local function queue_for(kind, id, n)
  if kind == 'v' then return 'verify' end
  if kind == 'c' then return redis.call('HGET', job_key(id), 'verify_on') or 'verify' end
  return queue_of(redis.call('HGET', attempt_key(id, n), 'mode'), redis.call('HGET', job_key(id), 'pool'))
end

-- Returns how many of an attempt's verifications are parked, and how many are left in all.
local function parked_verifications(id, n)
  local parked, left = 0, 0
  each_pending(id, n, function(each)
    parked, left = parked + redis.call('HEXISTS', P .. 'parked_behind', each), left + 1
  end)
  return parked, left
end

-- The job of a parked attempt shows what it waits for, and its deadline ends it. So does the job of
-- parked verifications, unless others of them are under way.
local function show_waiting(kind, id, n, why, behind)
  local job = redis.call('HMGET', job_key(id), 'state', 'deadline_at')
  if not job[1] or TERMINAL[job[1]] then return end
  if not is_of_loop(behind) then await_deadline(id, job[2]) end
  if kind == 'v' then
    local parked, left = parked_verifications(id, n)
    if parked == 0 or parked < left then return end
  end
  set_state(id, job[1], 'waiting', why, behind)
end

-- Puts an entry that has no slots behind a reason, outside the outbox.
local function put_behind(entry, behind, why, at_front)
  local kind, id, n = parse_entry(entry)
  leave_parking(entry)
  redis.call('SADD', P .. 'parked', behind)
  redis.call('ZADD', parked_key(behind), place_of(kind, id, n, at_front), entry)
  redis.call('HSET', P .. 'parked_behind', entry, behind)
  if kind == 'a' then park_item(entry, id, behind) end
  if not read_entry(entry) then put_entry(entry, queue_for(kind, id, n), 0, NOW, '-1') end
  redis.call('ZREM', P .. 'outbox', entry)
  if kind == 'c' then await_staleness(cycle_of(entry)) else show_waiting(kind, id, n, why, behind) end
end

-- Parks an entry. What it had reserved goes to the next ones.
local function park(entry, behind, why, at_front)
  put_behind(entry, behind, why, at_front)
  free_slots(entry, holdings_of(entry))
end

-- Makes an entry without slots due now: the caller of the script publishes it, unless it would have to
-- wait. Nothing is published only to be parked. Returns whether to publish it.
local function make_due(entry, queue, priority, gates)
  local why, behind = held_back(entry, gates)
  if not why then
    hand_out(entry, queue, priority)
    return true
  end
  enqueue(entry, queue, priority, NOW)
  put_behind(entry, behind, why)
  return false
end

local function is_parked(entry) return redis.call('HEXISTS', P .. 'parked_behind', entry) == 1 end

local function leave_parking(entry)
  local behind = redis.call('HGET', P .. 'parked_behind', entry)
  if not behind then return end
  redis.call('HDEL', P .. 'parked_behind', entry)
  redis.call('ZREM', parked_key(behind), entry)
  if redis.call('EXISTS', parked_key(behind)) == 0 then redis.call('SREM', P .. 'parked', behind) end
  local kind, id, n = parse_entry(entry)
  if is_of_loop(behind) then return extend_deadline(id) end
  if kind == 'c' then
    redis.call('ZREM', P .. 'stale', cycle_of(entry))
  elseif redis.call('HEXISTS', job_key(id), 'lane') == 1 then
    -- Its next attempt waits in the lane, where only the deadline ends it.
  elseif kind == 'a' or kind == 'v' and parked_verifications(id, n) == 0 then
    redis.call('ZREM', P .. 'stale', 'j:' .. id)
  end
end

-- Takes the first entry behind a reason that is still to be done.
local function unpark(reason)
  while true do
    local first = redis.call('ZPOPMIN', parked_key(reason))
    if #first == 0 then
      redis.call('SREM', P .. 'parked', reason)
      return nil
    end
    leave_parking(first[1])
    local e, unreadable = read_entry(first[1])
    if unreadable or not parse_entry(first[1]) then
      redis.call('ZADD', P .. 'outbox', NOW, first[1]) -- for the quarantine
    else
      local gates = gates_of(first[1])
      if e and gates then return first[1], e, gates end
    end
  end
end

-- A job whose verification was parked is running again.
local function show_verifying(id)
  if redis.call('HGET', job_key(id), 'state') == 'waiting' then set_state(id, 'waiting', 'running') end
end

-- Whether at most half of the work that runs here is behind a reason, with one more. Its slots must not
-- stay empty because others have a long queue, but it must not take every worker from them, either.
local function has_small_share(reason)
  local leases = 0
  for _, prefix in ipairs(prefixes()) do leases = leases + redis.call('ZCARD', prefix .. 'leases') end
  return 2 * (redis.call('ZCARD', active_key(reason)) + 1) <= leases
end

-- Returns the prefix of the partition that has the next entry behind a reason.
local function next_partition(reason)
  local all, found, first = prefixes(), P, nil
  for i = 1, #all > 1 and #all or 0 do
    local score = redis.call('ZRANGE', all[i] .. 'parked:' .. reason, 0, 0, 'WITHSCORES')[2]
    if score and (not first or tonumber(score) < first) then found, first = all[i], tonumber(score) end
  end
  return found
end

-- Releases the first entry behind a reason and returns true; nil without one. If a slot is reserved for
-- it, it goes to the front of its queue, if its reason has a small share of the work. One that another
-- reason holds back moves behind that.
local function release_first(reason, free)
  local entry, e, gates = unpark(reason)
  if not entry then return nil end
  local why, behind = held_back(entry, gates)
  if behind then
    park(entry, behind, why)
    return true
  end
  if free and has_small_share(reason) then e.priority = 0 end
  take_slots(entry, gates, NOW + RESERVED_MS)
  hand_out(entry, e.queue, e.priority)
  RELEASED[#RELEASED + 1] = publication(entry, e)
  local kind, id = parse_entry(entry)
  if kind == 'a' then set_state(id, 'waiting', 'queued') end
  if kind == 'v' then show_verifying(id) end
  return true
end

-- Releases parked entries while their reason has capacity, at most `most`. Slots belong to all
-- partitions, so the next entry may be in another one.
local function release_behind(reason, most)
  redis.call('ZREMRANGEBYSCORE', active_key(reason), '-inf', NOW) -- reservations that have expired
  for done = 1, most do
    local free = capacity(reason)
    if free and free <= 0 then return done - 1 end
    local partition = free and next_partition(reason) or P
    if not within(partition, release_first, reason, free) then return done - 1 end
  end
  return most
end

local function has_parked(reason)
  local names = {}
  for i, prefix in ipairs(prefixes()) do names[i] = prefix .. 'parked:' .. reason end
  return redis.call('EXISTS', unpack(names)) > 0
end

local function free_slot(reason, entry)
  if redis.call('ZREM', active_key(reason), entry) == 0 then return end
  if has_parked(reason) then release_behind(reason, AT_ONCE) end
end

-- The slot of a provider is free when it has answered; that of a quota when the lease ends.
local function free_provider(entry, provider)
  if (provider or '') == '' then return end
  redis.call('HSET', record_key(entry), 'provider', '')
  free_slot('provider:' .. provider, entry)
end

-- Returns the provider and the tenant that an entry may have a slot of, and its lane.
local function holdings_of(entry)
  local kind, id = parse_entry(entry)
  local job = redis.call('HMGET', job_key(id), 'tenant', 'lane')
  local calls = kind == 'a' or kind == 'c'
  return calls and redis.call('HGET', record_key(entry), 'provider'), kind == 'a' and job[1], job[2]
end

-- Lets the next merge of a loop begin, if this entry was one, or an attempt whose merge nobody makes any
-- more: its slot is kept until the attempt is settled.
local function free_merge(entry)
  local kind, id, n = parse_entry(entry)
  local gate = (kind == 'v' or kind == 'a') and merge_gate(id)
  if not gate then return end
  if kind == 'a' then
    local index = redis.call('HGET', attempt_key(id, n), 'merge')
    entry = index and verification_entry(id, n, index)
    if not entry or redis.call('ZSCORE', P .. 'leases', entry) then return end
  end
  free_slot(gate, entry)
end

local function free_slots(entry, provider, tenant)
  free_provider(entry, provider)
  if string.sub(entry, 1, 1) == 'v' then free_merge(entry) end
  if tenant then free_slot('quota:' .. tenant, entry) end
  FREED[entry] = true
end

local function end_lease(entry, provider, tenant, lane)
  redis.call('ZREM', P .. 'leases', entry)
  if lane then let_go(lane, entry) end
  free_slots(entry, provider, tenant)
end
local function drop_lease(entry)
  end_lease(entry, holdings_of(entry))
  free_merge(entry)
end

-- What a step released is kept with its record, so that a repeated call answers the same. `before` is
-- what an earlier step kept there.
local function keep_released(key, before)
  local text = table.concat(RELEASED, '\n')
  if text ~= '' then
    redis.call('HSET', key, 'released', text)
  elseif before then
    redis.call('HDEL', key, 'released')
  end
  return text
end
