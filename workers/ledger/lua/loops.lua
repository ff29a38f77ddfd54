-- Shared by the scripts, after gate.lua: loops, the slots of their items, and their budgets. Loops
-- and the jobs of their items live in the first partition. A job of an item has the fields `of_loop` and
-- `item`.

local function loop_key(loop, part) return P .. 'loop:' .. loop .. (part and ':' .. part or '') end
local function loop_entry(loop) return 'l:p00-' .. loop .. '/1' end
local function item_memory(loop, item) return 'memory:item:' .. loop .. '/' .. item end
local function loop_of(entry) return string.match(entry, '^l:p00%-(.*)/1$') end

-- A hint that was published before this time may be lost with its worker.
local HINT_MS = 5000
-- Says that a loop must be planned. There is one hint per loop: one that is under way is enough,
-- because the planner compares `dirty` with what it has read.
local function touch_loop(loop)
  local key = loop_key(loop)
  if redis.call('HEXISTS', key, 'state') == 0 then return end
  redis.call('HINCRBY', key, 'dirty', 1)
  local entry = loop_entry(loop)
  local e = read_entry(entry)
  if e and (e.published == 0 or e.published > NOW - HINT_MS) then return end
  hand_out(entry, 'loop', 5)
  RELEASED[#RELEASED + 1] = publication(entry, { queue = 'loop', priority = 5 })
end

-- Messages about a loop may arrive in another order than its changes: `at` and `version` tell.
local function loop_event(loop, data)
  local record = redis.call('HMGET', loop_key(loop), 'tenant', 'version')
  data.loop, data.at, data.tenant, data.version = loop, NOW / 1000, record[1] or nil, tonumber(record[2])
  event('loop', '', data)
end

-- Whether there is no room for another loop. One tenant must not take the place of all others.
local function loops_are_full(tenant)
  local loops = redis.call('ZRANGE', P .. 'loops', 0, -1)
  if #loops >= R.most then return true end
  if not given(tenant) then return false end
  local own = 0
  for _, loop in ipairs(loops) do
    if redis.call('HGET', loop_key(loop), 'tenant') == tenant then own = own + 1 end
  end
  return own >= R.most_of_tenant
end

-- -- items and their slots ------------------------------------------------------------------------

-- An item's record is `state|since|runs|job|reason`: see policies/loops/loop.py.
local function read_item(loop, item)
  local text = redis.call('HGET', loop_key(loop, 'items'), item)
  local state, since, runs, job, reason = string.match(text or '', '^(.-)|(.-)|(.-)|(.-)|(.*)$')
  return state and { state = state, since = since, runs = runs, job = job, reason = reason }
end

-- Every write of a record. `begun` lists the items with a job that has not ended.
local function write_item(loop, item, text)
  if redis.call('EXISTS', P .. 'loops:coupled') == 1 then
    local before = redis.call('HGET', loop_key(loop, 'items'), item) or ''
    local was, is = string.match(before, '^(.-)|'), string.match(text, '^(.-)|')
    if was ~= is and is ~= 'passed' and is ~= 'skipped' then withdraw_events(loop, item, 'the item runs again') end
    if was ~= is and (not was or SETTLED[was] or SETTLED[is]) then
      local tenant = redis.call('HGET', loop_key(loop), 'tenant') or ''
      touch_waiting(tenant, loop .. '/' .. item)
      local whole = string.match(item, '^(.+)%.2$') -- of an item that was split
      if whole then touch_waiting(tenant, loop .. '/' .. whole) end
    end
  end
  redis.call('HSET', loop_key(loop, 'items'), item, text)
  if not string.match(text, '^skipped|') then redis.call('HDEL', loop_key(loop, 'split'), item) end
  -- What is said about who holds it back ends with its wait for a slot.
  if not string.match(text, '^ready|') then redis.call('HDEL', P .. 'loops:denied', loop .. '/' .. item) end
  redis.call(string.match(text, '^running|') and 'SADD' or 'SREM', loop_key(loop, 'begun'), item)
end

local function move_item(loop, item, record, state, reason)
  write_item(loop, item, table.concat({ state, string.format('%.0f', NOW), record.runs, record.job,
    string.sub(string.gsub(reason, '|', '/'), 1, 60) }, '|'))
end

-- Whether a worker may still run or verify an attempt. It may renew its lease until a sweep drops it,
-- also after it expired: Redis may have been away.
local function has_worker(id, n)
  local held = redis.call('ZSCORE', P .. 'leases', attempt_entry(id, n))
  each_pending(id, n, function(entry) held = held or redis.call('ZSCORE', P .. 'leases', entry) end)
  return held
end

-- An item takes its slot when it is admitted, and keeps it until its job ends or waits for something
-- else than a worker. A cancelled attempt has it as long as its worker may still run it. Planning any
-- loop gives the free slot to all of them; its own may have been deleted.
local function leave_slot(id, loop)
  if redis.call('ZREM', P .. 'loops:live', id) == 0 then return end
  keep_files(id)
  if redis.call('EXISTS', loop_key(loop)) == 0 then loop = redis.call('SRANDMEMBER', P .. 'loops:active') end
  if loop then touch_loop(loop) end
end

-- Returns what has a slot: an item whose job has ended has none, unless a worker may still run it.
local function live_items()
  local live = {}
  for _, id in ipairs(redis.call('ZRANGE', P .. 'loops:live', 0, -1)) do
    local job = redis.call('HMGET', job_key(id), 'state', 'attempt', 'of_loop', 'item')
    local held = job[2] and has_worker(id, job[2])
    if (not job[1] or TERMINAL[job[1]]) and not held then
      leave_slot(id, job[3] or '')
    else
      local n = job[2] or '1'
      local attempt = redis.call('HMGET', attempt_key(id, n), 'worker', 'claimed_at', 'progress')
      local lease = redis.call('ZSCORE', P .. 'leases', attempt_entry(id, n))
      live[#live + 1] = { id, job[3] or '', job[4] or '', n, attempt[1] or '', attempt[2] or '',
        lease or '', held and 1 or 0, lease and attempt[3] or '' }
    end
  end
  return live
end

-- The worker of an attempt whose job had ended has given it back: nothing of it is used any more.
local function release_ended(id, entry)
  local loop = redis.call('HGET', job_key(id), 'of_loop')
  if loop then redis.call('HDEL', loop_key(loop, 'reserved'), entry) end
  leave_slot(id, loop or '')
end

-- An item that waits for anything else than a worker leaves its slot and what it had reserved to
-- others. The time behind a reason of its loop does not count against its deadline.
local function park_item(entry, id, behind)
  local loop = redis.call('HGET', job_key(id), 'of_loop')
  if not loop then return end
  redis.call('HDEL', loop_key(loop, 'reserved'), entry)
  if is_of_loop(behind) then redis.call('HSET', job_key(id), 'parked_at', stamp(NOW)) end
  leave_slot(id, loop)
  if behind == 'slot:' .. loop then touch_loop(loop) end
end

-- The time for which an item waited for its own loop does not count.
local function extend_deadline(id)
  local job = redis.call('HMGET', job_key(id), 'parked_at', 'deadline_at')
  if not job[1] or job[1] == '' then return end
  redis.call('HSET', job_key(id), 'parked_at', '',
    'deadline_at', stamp(tonumber(job[2]) + NOW - tonumber(job[1])))
end

local ITEM_STATES = { succeeded = 'passed', escalated = 'failed', cancelled = 'failed' }
-- The end of a job is the end of its item's run, unless the item has moved on without it.
local function end_item(id, n, loop, item, state, reason)
  local record = read_item(loop, item)
  if record and record.job == id and record.state == 'running' then
    local lost = reason == 'worker_lost'
    local ended = lost and 'quarantined' or reason == 'already_done' and 'skipped' or ITEM_STATES[state]
    if lost and R.max_claims then reason = string.format('worker_lost ×%d', R.max_claims) end
    move_item(loop, item, record, ended, state == 'succeeded' and '' or reason or state)
    event('item', id, { loop = loop, item = item, state = ended, reason = reason or nil })
  end
  if not has_worker(id, n) then
    redis.call('HDEL', loop_key(loop, 'reserved'), attempt_entry(id, n))
    redis.call('ZREM', P .. 'loops:live', id)
    redis.call('HDEL', P .. 'loops:locks', id)
  end
  touch_loop(loop)
end

-- A person requeues the job of an item: the item goes on, and waits for a slot. Returns false if the
-- item has moved on. A plan that was made without it is stale: others may depend on the item.
local function resume_item(id, loop, item)
  local record = read_item(loop, item)
  if not record or record.job ~= id then return false end
  move_item(loop, item, record, 'running', '')
  event('item', id, { loop = loop, item = item, state = 'running' })
  redis.call('HINCRBY', loop_key(loop), 'version', 1)
  touch_loop(loop)
  return true
end

-- -- budgets --------------------------------------------------------------------------------------

local RESOURCES = { 'tokens', 'money', 'seconds' }
local SCOPES = { 'loop', 'day' }
local function today() return int(math.floor(NOW / 86400000)) end

-- Reads `tokens|money|seconds`; what is missing is unknown.
local function read_amounts(text)
  local tokens, money, seconds = string.match(text or '', '^(.-)|(.-)|(.*)$')
  return { tokens = tonumber(tokens or ''), money = tonumber(money or ''), seconds = tonumber(seconds or '') }
end
local function write_amounts(amounts)
  local parts = {}
  for i, name in ipairs(RESOURCES) do
    parts[i] = amounts[name] and string.format('%.17g', amounts[name]) or ''
  end
  return table.concat(parts, '|')
end

-- Returns the limits that attempts share, as { scope, resource, limit, used }; nil without any. And the
-- most that one attempt may use.
local function shared_limits(loop)
  local names = {}
  for _, scope in ipairs(SCOPES) do
    for _, resource in ipairs(RESOURCES) do names[#names + 1] = scope .. ':' .. resource end
  end
  names[#names + 1] = 'attempt'
  local limits = redis.call('HMGET', loop_key(loop, 'limits'), unpack(names))
  local caps = read_amounts(limits[#names])
  names[#names] = nil
  local spent = redis.call('HMGET', loop_key(loop, 'spent'), 'day', unpack(names))
  local found = {}
  for i, name in ipairs(names) do
    local scope, resource = string.match(name, '^(%a+):(%a+)$')
    local counts = scope == 'loop' or spent[1] == today()
    if limits[i] then
      found[#found + 1] = { scope = scope, resource = resource, limit = tonumber(limits[i]),
        used = counts and tonumber(spent[i + 1] or '0') or 0 }
    end
  end
  return #found > 0 and found or nil, caps
end

-- Returns what is left of each limited resource for an attempt, its caps, and whether others have
-- reserved something.
local function budget_rest(loop, entry)
  local limits, caps = shared_limits(loop)
  local reserved, unknown, others, rest = {}, {}, false, {}
  if not limits then return rest, caps, false end
  -- Most attempts reserve the same, so that hundreds of reservations are few texts to read.
  local times, own = {}, redis.call('HGET', loop_key(loop, 'reserved'), entry)
  for _, text in ipairs(redis.call('HVALS', loop_key(loop, 'reserved'))) do
    times[text] = (times[text] or 0) + 1
  end
  if own then times[own] = times[own] - 1 end
  for text, count in pairs(times) do
    others = others or count > 0
    local amounts = read_amounts(text)
    for _, name in ipairs(RESOURCES) do
      reserved[name] = (reserved[name] or 0) + count * (amounts[name] or 0)
      -- It began before there was this limit, so that it may use everything.
      unknown[name] = unknown[name] or (count > 0 and not amounts[name])
    end
  end
  for _, each in ipairs(limits) do
    local left = unknown[each.resource] and 0 or each.limit - each.used - (reserved[each.resource] or 0)
    rest[each.resource] = math.min(rest[each.resource] or math.huge, left)
  end
  return rest, caps, others
end

-- Whether an attempt may start. One whose cap does not fit waits for others to give back what they do
-- not use; alone, it takes what is left.
local function can_spend(loop, entry)
  local rest, caps, others = budget_rest(loop, entry)
  for name, left in pairs(rest) do
    if left <= 0 or (others and caps[name] and left < caps[name]) then return false end
  end
  return true
end

-- Reserves what an attempt may use at most and returns it; nil if nothing limits it. Then it is listed
-- all the same: if its worker is lost, what it used is charged.
local function reserve_budget(loop, entry)
  local rest, amounts = budget_rest(loop, entry)
  for name, left in pairs(rest) do amounts[name] = math.min(amounts[name] or left, left) end
  local text = write_amounts(amounts)
  redis.call('HSET', loop_key(loop, 'reserved'), entry, text)
  return next(amounts) and text
end

-- Warns once when a limit is used up by half, by four fifths, and whole. The planner then pauses it.
local function warn_of_budget(loop)
  for _, each in ipairs(shared_limits(loop) or {}) do
    local name = each.scope .. ':' .. each.resource
    local percent = 100 * each.used / each.limit
    local level = percent >= 100 and 100 or percent >= 80 and 80 or percent >= 50 and 50 or 0
    local field = 'warned:' .. name .. (each.scope == 'day' and ':' .. today() or '')
    local before = tonumber(redis.call('HGET', loop_key(loop, 'spent'), field) or '0')
    if level ~= before then redis.call('HSET', loop_key(loop, 'spent'), field, level) end
    if level > before then
      loop_event(loop, { budget = name, percent = level, used = each.used, limit = each.limit })
    end
    if level == 100 then touch_loop(loop) end
  end
end

-- Charges a loop with what an attempt used and gives the rest of its reservation back. Unknown usage
-- is never 0: then all that was reserved counts. An attempt that is not listed belongs to an earlier
-- loop of this name. The item's own limit counts a call that never answered only as far as it is known:
-- otherwise one lost worker would end every item without a cap for its attempts.
local function charge(loop, entry, used, has_answer)
  local spent, kept = loop_key(loop, 'spent'), redis.call('HGET', loop_key(loop, 'reserved'), entry)
  if not kept then return end
  local reserved = read_amounts(kept)
  redis.call('HDEL', loop_key(loop, 'reserved'), entry)
  if redis.call('HGET', spent, 'day') ~= today() then
    redis.call('HDEL', spent, 'day:tokens', 'day:money', 'day:seconds')
    redis.call('HSET', spent, 'day', today())
  end
  for _, name in ipairs(RESOURCES) do
    local amount = used[name] or reserved[name]
    if not used[name] then redis.call('HINCRBY', spent, 'unknown:' .. name, 1) end
    local known = used[name] or has_answer and reserved[name]
    if known and known > 0 then
      local _, id = parse_entry(entry)
      redis.call('HINCRBYFLOAT', job_key(id), 'charged:' .. name, string.format('%.17g', known))
    end
    if amount and amount > 0 then
      for _, scope in ipairs(SCOPES) do
        redis.call('HINCRBYFLOAT', spent, scope .. ':' .. name, string.format('%.17g', amount))
      end
    end
  end
  warn_of_budget(loop)
  if next(reserved) then touch_loop(loop) end -- others may use what is given back
  if has_parked('budget:' .. loop) then release_behind('budget:' .. loop, AT_ONCE) end
end

-- Charges an attempt that ended without an answer with what it metered, else with its reservation.
-- `free`: its provider did not begin to answer, so what it did not meter costs nothing. An agent may
-- have asked more than once before that. `metered`: what it used, if it says so at its end.
local function charge_unanswered(loop, entry, free, metered)
  local attempt = redis.call('HMGET', record_key(entry), 'metered', 'claimed_at')
  local used = read_amounts(given(metered) and metered or attempt[1])
  if free then used.tokens, used.money = used.tokens or 0, used.money or 0 end
  used.seconds = math.max(0, NOW - tonumber(attempt[2] or NOW)) / 1000
  charge(loop, entry, used)
end

-- -- what holds an item back ----------------------------------------------------------------------

-- Returns what the entry of an item waits for, and behind which reason.
local function held_by_loop(entry, gates)
  local loop = gates.loop
  if redis.call('HGET', loop_key(loop), 'held') == '1' then return 'pause', 'loop:' .. loop end
  if gates.spends and not can_spend(loop, entry) then return 'budget', 'budget:' .. loop end
  if not redis.call('ZSCORE', P .. 'loops:live', gates.job) then return 'slot', 'slot:' .. loop end
end

-- What a loop's own reasons have room for. Only admission gives slots: tasks/loops/plan.py.
local function loop_capacity(kind, loop)
  if kind == 'slot' then return 0, 'slot', true end
  if kind == 'merge' then return 1 - slots_taken('merge:' .. loop), 'slot' end -- with the group, if any
  if kind == 'loop' then
    if redis.call('HGET', loop_key(loop), 'held') == '1' then return 0, 'pause', true end
    return nil
  end
  return can_spend(loop, '') and 1 or 0, 'budget'
end

-- Adds an item's loop to what may hold its entry back. `spends`: whether it asks for an answer.
local function add_item(gates, id, loop, spends)
  if loop then gates.loop, gates.job, gates.spends = loop, id, spends end
  return gates
end

-- The kinds of reasons that are a loop's own. The time behind them does not count against the deadline
-- of an item's job.
local OF_LOOPS = { slot = true, loop = true, budget = true, merge = true }
local function is_of_loop(behind) return OF_LOOPS[string.match(behind, '^(%a+):') or ''] end

-- The newest notes of a loop: who changed it, and why an item got its slot.
local function note_in_log(loop, note, by)
  local key = loop_key(loop, 'log')
  redis.call('LPUSH', key, cjson.encode({ at = NOW / 1000, note = note, by = by }))
  redis.call('LTRIM', key, 0, 499)
end

-- Ends the run of an item that goes on without its job. A worker that still runs it learns at its next
-- renewal that its lease is lost, and cancels the call.
local function cancel_run(id, note)
  local job = redis.call('HMGET', job_key(id), 'state', 'attempt', 'of_loop')
  if not job[1] or TERMINAL[job[1]] then return end
  local entry = attempt_entry(id, job[2])
  if job[3] and redis.call('ZSCORE', P .. 'leases', entry) then charge_unanswered(job[3], entry) end
  each_pending(id, job[2], function(pending)
    local _, _, _, index = parse_entry(pending)
    redis.call('HSET', attempt_key(id, job[2]), 'vtoken:' .. index, '')
  end)
  drop_entry(entry)
  finish(id, job[1], 'cancelled', 'cancelled', note)
  redis.call('HSET', attempt_key(id, job[2]), 'token', '')
end
