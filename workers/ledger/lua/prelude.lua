-- Shared by the scripts: each is given the definitions that it uses, and builds the functions that it
-- calls (workers/ledger/connection/scripts.py). No variable may have the name of a shared function.
-- KEYS[1] is the prefix of one partition, ARGV[1] the request as JSON.
-- The prefix names the partition: the records of jobs are in it, and everything that is about them.
local P = KEYS[1]
-- What all partitions share is in the first one: slots, limits, tokens, what was learned of providers.
local S = string.gsub(P, '{p%d+}:$', '{p00}:')
local R = cjson.decode(ARGV[1])
-- The time is Redis' own; only tests send `now_ms`, to move the clock.
local time = redis.call('TIME')
local NOW = R.now_ms or tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000

local function given(value) return value ~= nil and value ~= cjson.null and value ~= false end
local function stamp(ms) return string.format('%.3f', ms) end
-- A lease is a random token and the time at which it expires; without a time it has expired.
local function expired(at) return not given(at) or tonumber(at) <= NOW end
-- Whether a held lease may be taken over. After half a lease without sweeps nobody
-- could renew, so until the next sweep has extended the leases, none counts as expired.
local function lapsed(entry)
  if not expired(redis.call('ZSCORE', P .. 'leases', entry)) then return false end
  local swept = tonumber(redis.call('GET', P .. 'swept_at') or '')
  return swept and NOW - swept <= R.lease_ms / 2
end
-- Whether an entry has lost too many workers. It is 'clear' that it is at fault if nothing else ran in
-- the last one; if it is 'unclear', a process of its own may try once more.
local function blame_for(claims, shared)
  if tonumber(claims or '0') < R.max_claims then return nil end
  if shared ~= '1' then return 'clear' end
  return R.shared and 'unclear' or nil
end
local function shared_mark() return R.shared and '1' or '' end
-- A full Redis refuses a script at its first write, if that write may need memory, and nothing after
-- it. So each script decides by its first write, which changes nothing, whether it needs room.
local function need_room() redis.call('SETRANGE', P .. 'swept_at', 0, '') end
local function allow_when_full() redis.call('ZREM', P .. 'outbox', '') end
-- A number from JSON is a float: as text it needs %d.
local function int(number) return string.format('%d', number) end
local function job_key(id) return P .. 'job:' .. id end
local function attempt_key(id, n) return P .. 'job:' .. id .. ':' .. int(n) end
local function cycle_key(id) return P .. 'cycle:' .. id end
local function attempt_entry(id, n) return 'a:' .. id .. '/' .. int(n) end
local function verification_entry(id, n, index)
  return 'v:' .. id .. '/' .. int(n) .. '/' .. int(index)
end

-- Returns an entry's kind (a, v, c, d, l), job or loop, attempt and, of a verification or cycle, its index; nil if
-- the text does not name an entry.
local function parse_entry(entry)
  local kind, id, n, index = string.match(entry, '^([avcdl]):([^/:]+)[/:](%d+)[/:]?(%d*)$')
  if kind and (kind == 'v' or kind == 'c') == (index ~= '') then return kind, id, n, index end
end
local function cycle_of(entry) return string.sub(entry, 3) end

-- Entries without a slot, because this script has freed it.
local FREED = {}

local TERMINAL = { succeeded = true, escalated = true, cancelled = true }

local function event(kind, id, data)
  data.type = kind
  data.job = id
  redis.call('XADD', P .. 'events', 'MAXLEN', '~', R.events_cap or 100000, '*', 'data', cjson.encode(data))
end

-- PEXPIRE accepts only whole milliseconds, and 16.1 * 1000 is not whole.
local function expire(key, ms) redis.call('PEXPIRE', key, math.ceil(ms)) end

-- The outbox: an entry is `queue|priority|published_at|tries`, its score the time to check it.
-- A published entry is checked now and then, in case its message was lost. Its score is above
-- CHECK, so that even a long backlog sorts after everything that is due. The scores of retries are
-- below 0, so that the sweep finds a due one at once, however much else is due.
-- published_at -1: the sweep publishes it when it is due; there is no other due index.
-- published_at 0: the caller of the script is publishing it.
local CHECK = 1e14
local function check_again(entry, at) redis.call('ZADD', P .. 'outbox', 'XX', CHECK + at, entry) end

local URGENT = -1e14
local function due_score(priority, at) return tonumber(priority) == 0 and URGENT + at or at end

local function put_entry(entry, queue, priority, at, published)
  redis.call('ZADD', P .. 'outbox', due_score(priority, at), entry)
  redis.call('HSET', P .. 'outbox:entries', entry,
    queue .. '|' .. int(priority) .. '|' .. published .. '|0')
end

local function enqueue(entry, queue, priority, at) put_entry(entry, queue, priority, at, '-1') end

-- The caller of the script publishes the entry at once; if it fails, the sweep does after the grace.
local function hand_out(entry, queue, priority)
  put_entry(entry, queue, priority, NOW + R.grace_ms, '0')
end

-- Returns nil without a record, and nil and the text if the record cannot be read.
local function read_entry(entry)
  local text = redis.call('HGET', P .. 'outbox:entries', entry)
  if not text then return nil end
  local queue, priority, published, tries = string.match(text, '^(.-)|(%d+)|([%d.-]+)|(%d+)$')
  if not tonumber(published) then return nil, text end
  return { queue = queue, priority = tonumber(priority), published = tonumber(published),
           tries = tonumber(tries) }
end

local function write_entry(entry, e)
  redis.call('HSET', P .. 'outbox:entries', entry,
    e.queue .. '|' .. int(e.priority) .. '|' .. stamp(e.published) .. '|' .. int(e.tries))
end

-- How often sending an entry has failed since it was last sent, the last error, and the token of the
-- call that reported it. A record that cannot be read counts as none.
local function failures_of(entry)
  local text = redis.call('HGET', P .. 'outbox:failures', entry)
  local read, known = pcall(cjson.decode, text or '')
  return read and type(known) == 'table' and tonumber(known.count) and known or { count = 0 }
end

local function publication(entry, e)
  return table.concat({ entry, e.queue, int(e.priority), int(failures_of(entry).count) }, '|')
end
local function watermark(queue, priority) return queue .. '|' .. int(priority) end

-- Removes an entry that nobody needs any more, which proves nothing about other entries. A published
-- one has no failures, and one in the outbox is not parked.
local function drop_entry(entry, published)
  redis.call('HDEL', P .. 'outbox:entries', entry)
  if not published then redis.call('HDEL', P .. 'outbox:failures', entry) end
  if redis.call('ZREM', P .. 'outbox', entry) == 0 then leave_parking(entry) end
end

-- The claim, not the publication, removes an entry. Only a claim raises the watermarks of its queue:
-- it shows that the message arrived, and so what the broker had no more urgent or older message of.
local function take_entry(entry)
  local e = read_entry(entry)
  local published = e and e.published > 0
  drop_entry(entry, published)
  if not published then return end
  local name = watermark(e.queue, e.priority)
  local latest = tonumber(redis.call('HGET', P .. 'watermarks', name) or '0')
  redis.call('HSET', P .. 'watermarks', name, stamp(math.max(latest, e.published)),
    name .. '|claimed', stamp(NOW))
end

-- External work waits in its subject's lane: mandatory retries first, then what is due.
local RANK = { immediate_retry = 0, delayed_verification = 1, policy_retry = 2, initial = 3 }
local function offer(lane, entry, mode, at)
  redis.call('ZADD', P .. 'lane:' .. lane, RANK[mode] * 1e14 + at, entry)
end

-- A subject holds a mandatory retry, other work, or both; a later claim does not replace either.
-- What a producer claimed is held by the subject for this producer alone, as `<entry>\31<token>`:
-- nobody else lets go of it, so the token shows whether it is still its own claim.
local function slot_of(lane, holder) return given(holder) and lane .. '\31' .. holder or lane end
local function held_work(name, slot)
  local value = redis.call('HGET', P .. name, slot)
  if not value then return nil end
  local entry, claimed = string.match(value, '^([^\31]+)\31?(.*)$')
  local kind, id, n = parse_entry(entry)
  local key = kind == 'c' and cycle_key(cycle_of(entry)) or attempt_key(id, n)
  local token, lease = redis.call('HGET', key, 'token'), redis.call('ZSCORE', P .. 'leases', entry)
  local own = token and token ~= '' and (claimed == '' or claimed == token)
  if own and not expired(lease) then return { 'held', entry, token, lease } end
end
local function hold(lane, entry, mode)
  redis.call('ZREM', P .. 'lane:' .. lane, entry)
  local name, slot = mode == 'immediate_retry' and 'retrying' or 'holding', slot_of(lane, R.holder)
  if held_work(name, slot) then return end
  redis.call('HSET', P .. name, slot, given(R.holder) and entry .. '\31' .. R.token or entry)
end

local function let_go(lane, entry)
  for _, name in ipairs({ P .. 'retrying', P .. 'holding' }) do
    if redis.call('HGET', name, lane) == entry then redis.call('HDEL', name, lane) end
  end
end

-- The sweep ends jobs in lanes and parked ones at their deadline.
local function deadline_passed(last_fault)
  local fault = last_fault and last_fault ~= '' and '; the last fault: ' .. last_fault or ''
  return 'the job\'s deadline passed' .. fault
end
local function await_deadline(id, at) redis.call('ZADD', P .. 'stale', at, 'j:' .. id) end
-- It ends delayed verifications, too, if they are in a lane or parked for too long. Staleness counts
-- from the first due time, however often the entry was given back.
local function await_staleness(cycle)
  local at = redis.call('HMGET', cycle_key(cycle), 'first_due_at', 'due_at')
  redis.call('ZADD', P .. 'stale', tonumber(at[1] or at[2]) + (R.stale_ms or 259200000), cycle)
end

local function spent_key(tenant)
  return S .. 'spent:' .. tenant .. ':' .. int(math.floor(NOW / 86400000))
end

-- Counts tokens for the job and, for two days, for its tenant.
local function spend(id, tenant, tokens)
  redis.call('HINCRBY', job_key(id), 'tokens', tokens)
  if tenant then
    redis.call('INCRBY', spent_key(tenant), tokens)
    expire(spent_key(tenant), 172800000)
  end
end

-- Stores an answer and what it took. Results that came with it are read when it is settled. `report`
-- identifies the content of what a subject reported.
local function keep_answer(id, n, mode, answer)
  local key = attempt_key(id, n)
  redis.call('HSET', key, 'output', answer.output, 'output_by', answer.token,
    'output_at', stamp(NOW), 'provider', '')
  if given(answer.report) then redis.call('HSET', key, 'report', answer.report) end
  raise_schema(id)
  local job = redis.call('HMGET', job_key(id), 'tenant', 'of_loop')
  if given(answer.tokens) then spend(id, job[1], answer.tokens) end
  if given(answer.money) then redis.call('HINCRBYFLOAT', job_key(id), 'money', answer.money) end
  if job[2] then
    charge(job[2], attempt_entry(id, n), { tokens = given(answer.tokens) and answer.tokens or nil,
      money = given(answer.money) and answer.money or nil,
      seconds = given(answer.seconds) and answer.seconds or 0 }, true)
  end
  if given(answer.seconds) then
    redis.call('HINCRBYFLOAT', job_key(id), 'seconds', answer.seconds)
    if mode ~= 'initial' then
      redis.call('HINCRBYFLOAT', job_key(id), 'repair_seconds', answer.seconds)
    end
  end
  local places = {}
  for i, result in ipairs(answer.given) do
    places[i] = int(i - 1)
    redis.call('HSET', key, 'result:' .. places[i], result)
  end
  if #places > 0 then redis.call('HSET', key, 'verifications', table.concat(places, ' ')) end
end
-- Whether a subject reported something else before. Earlier releases kept no identification.
local function other_report(known) return given(R.report) and known and known ~= R.report end

local function index_state(id, old, new)
  if old == new then return end
  if old then redis.call('ZREM', P .. 'jobs:' .. old, id) end
  redis.call('ZADD', P .. 'jobs:' .. new, NOW, id)
end

-- `behind` is the reason that the entry of a waiting job is parked behind.
local function set_state(id, old, new, waiting_for, behind)
  redis.call('HSET', job_key(id), 'state', new, 'waiting_for', waiting_for or '',
    'waiting_behind', behind or '', 'updated_at', stamp(NOW))
  index_state(id, old, new)
end

local function open_cycles(id)
  local text = redis.call('HGET', job_key(id), 'open_cycles') or ''
  local found = {}
  for cycle in string.gmatch(text, '%S+') do found[#found + 1] = cycle end
  return found
end

local function save_open_cycles(id, cycles)
  redis.call('HSET', job_key(id), 'open_cycles', table.concat(cycles, ' '))
end

-- The newest schema among a job's stored bodies. `needs` is that of the bodies in the request.
local function raise_schema(id, bodies)
  local key, with = job_key(id), bodies or R
  if given(with.needs) and with.needs > tonumber(redis.call('HGET', key, 'schema') or '1') then
    redis.call('HSET', key, 'schema', int(with.needs), 'release', with.release)
  end
end

-- Whether a job of this schema has a body that the caller's release cannot read.
local function unknown_schema(schema) return tonumber(schema or '1') > R.schema end
local function too_new(id) return unknown_schema(redis.call('HGET', job_key(id), 'schema')) end

-- How many attempts a job has. A damaged number must not keep Redis busy.
local function attempts_of(text) return math.min(tonumber(text or '') or 0, 10000) end

local function expire_job(id, attempts, memory)
  local ttl = R.retention_ms or 604800000
  expire(job_key(id), ttl)
  for n = 1, attempts_of(attempts) do expire(attempt_key(id, n), ttl) end
  if memory then expire(P .. memory, ttl) end
end

-- Retention starts at the terminal state, but not before delayed verification has ended.
local function retain(id)
  local job = redis.call('HMGET', job_key(id), 'state', 'attempt', 'memory', 'open_cycles')
  if TERMINAL[job[1]] and (job[4] or '') == '' then expire_job(id, job[2], job[3]) end
end

-- An idempotency key may be used again when its job is no longer kept. If that job left records
-- that are kept longer (cycles, escalations), the next one needs an id of its own: `<id>_2`.
local function base_and_number(id)
  local base, number = string.match(id, '^(.-)_(%d+)$')
  return base or id, tonumber(number or '1')
end
local function derived_from_a_key(id) return string.match(id, '^%w+%-[ko]') ~= nil end

local function keep_incarnation(id)
  if not derived_from_a_key(id) then return end
  local base, number = base_and_number(id)
  local key = P .. 'incarnation:' .. base
  local latest = math.max(number, tonumber(redis.call('GET', key) or '0'))
  -- Twice, because the time of a record starts at its end.
  redis.call('SET', key, int(latest), 'PX', int(2 * (R.cycle_retention_ms or 34560000000)))
end

-- Returns the id of the latest job with this key, if it left records or follows one that did.
local function latest_incarnation(id)
  if not derived_from_a_key(id) then return nil end
  local number = tonumber(redis.call('GET', P .. 'incarnation:' .. id) or '0')
  if number > 1 then return id .. '_' .. int(number) end
  if number == 1 then return id end
  -- Records of releases that did not count incarnations.
  local records = { cycle_key(id .. ':1:1') }
  for n = 1, 10 do records[n + 1] = P .. 'escalation:' .. id .. ':' .. int(n) end
  return redis.call('EXISTS', unpack(records)) > 0 and id or nil
end

-- Returns what accepting answers if the key of this id has a job here, else nil and the id of the
-- latest job with the key, if it left records.
local function job_of_key(id)
  local latest = latest_incarnation(id)
  local found = latest or id
  local stored = redis.call('HMGET', job_key(found), 'digest', 'body')
  if not stored[1] then return nil, latest end
  if stored[1] == R.digest then return { 'seen', found } end
  local kind = '^v%d+:'
  if string.match(stored[1], kind) == string.match(R.digest, kind) then return { 'conflict', found } end
  return { 'compare', found, stored[2] } -- another release made the stored digest
end

-- A key whose job lives in another partition is reserved in its own one: `<job id>|<since>`.
local function reservation_key(id) return P .. 'key:' .. string.match(id, '%-(.*)$') end
-- Returns what accepting answers if the key of this id is reserved for a job with another id. A
-- reservation that was not used in time is abandoned if there is no such job.
local function reserved_elsewhere(id)
  local record = redis.call('GET', reservation_key(id))
  if not record or record == R.instead then return nil end
  local other, since = string.match(record, '^(.-)|(.*)$')
  if other == R.id then return nil end
  return { 'elsewhere', other, record, NOW - tonumber(since) > R.reserved_ms and 'abandoned' or '' }
end

local function next_incarnation(id)
  local base, number = base_and_number(id)
  local following = base .. '_' .. int(number + 1)
  keep_incarnation(following)
  return following
end

-- Undoes `retain` for a job that goes on.
local function keep(id)
  local job = redis.call('HMGET', job_key(id), 'attempt', 'memory')
  redis.call('PERSIST', job_key(id))
  for n = 1, attempts_of(job[1]) do redis.call('PERSIST', attempt_key(id, n)) end
  if job[2] then redis.call('PERSIST', P .. job[2]) end
end

-- Cuts a text, but never inside a character: invalid UTF-8 could not be read back.
local function brief(text)
  local last = math.min(#text, 500)
  while last > 0 and last < #text and math.floor(string.byte(text, last + 1) / 64) == 2 do
    last = last - 1
  end
  return string.sub(text, 1, last)
end

-- Removes an ended escalation from its group's counts.
local function leave_group(eid, signature, task_type, tenant)
  local group = P .. 'group:' .. signature
  redis.call('ZREM', group .. ':open', eid)
  local counts = { 'type:' .. task_type }
  if tenant ~= '' then counts[2] = 'tenant:' .. tenant end
  for _, count in ipairs(counts) do
    if redis.call('HINCRBY', group, count, -1) <= 0 then redis.call('HDEL', group, count) end
  end
  if redis.call('HINCRBY', group, 'open', -1) <= 0 then
    expire(group, R.cycle_retention_ms or 34560000000)
  end
end

-- Records an escalation and returns its signature and id. It stays open until a person ends it; the
-- next one of the same attempt or cycle gets a number. Escalations with the same signature form a group.
local function escalate(eid, id, n, cycle, reason, detail, failure)
  local first, times, key, state = eid, 1, nil, nil
  repeat
    key = P .. 'escalation:' .. eid
    state = redis.call('HGET', key, 'state')
    if state == 'open' then return nil, eid end
    if state then times = times + 1; eid = first .. '.' .. times end
  until not state
  local signature = failure and failure.signature or 'reason:' .. reason
  local kind = failure and failure.kind or ''
  local job = redis.call('HMGET', job_key(id), 'task_type', 'tenant')
  local task_type, tenant = job[1] or '', job[2] or ''
  redis.call('HSET', key, 'job_id', id, 'attempt', n, 'cycle_id', cycle or '', 'reason', reason,
    'signature', signature, 'kind', kind, 'task_type', task_type, 'tenant', tenant,
    'detail', brief(detail or ''), 'at', stamp(NOW), 'state', 'open')
  redis.call('ZADD', P .. 'escalations', NOW, eid)
  keep_incarnation(id)
  local group = P .. 'group:' .. signature
  redis.call('HSETNX', group, 'first_at', stamp(NOW))
  redis.call('HSET', group, 'signature', signature, 'reason', reason, 'kind', kind, 'example', id,
    'detail', brief(detail or ''), 'last_at', stamp(NOW))
  for _, count in ipairs({ 'open', 'total', 'since_alert', 'type:' .. task_type }) do
    redis.call('HINCRBY', group, count, 1)
  end
  if tenant ~= '' then redis.call('HINCRBY', group, 'tenant:' .. tenant, 1) end
  redis.call('PERSIST', group)
  redis.call('ZADD', P .. 'groups', NOW, signature)
  redis.call('ZADD', group .. ':open', NOW, eid)
  return signature, eid
end

local function end_cycle(id, cycle, status, reason)
  redis.call('HSET', cycle_key(cycle), 'status', status, 'reason', reason, 'ended_at', stamp(NOW))
  expire(cycle_key(cycle), R.cycle_retention_ms or 34560000000)
  drop_entry('c:' .. cycle)
  drop_lease('c:' .. cycle)
  redis.call('ZREM', P .. 'stale', cycle)
  local lane = redis.call('HGET', job_key(id), 'lane')
  if lane then redis.call('ZREM', P .. 'lane:' .. lane, 'c:' .. cycle) end
  event('cycle', id, { cycle = cycle, status = status, reason = reason })
end

-- Ends a cycle independently of its job. Escalations are grouped by `reason`; people read `detail`,
-- if there is one. Returns the id of the escalation, if any; so does `finish`.
local function close_cycle(id, cycle, status, reason, detail)
  local text = detail or reason
  local _, eid
  end_cycle(id, cycle, status, text)
  if status == 'escalated' then
    local n = redis.call('HGET', cycle_key(cycle), 'source_attempt')
    _, eid = escalate(cycle, id, n, cycle, reason, text, nil)
  end
  if redis.call('EXISTS', job_key(id)) == 0 then return eid end
  local left = {}
  for _, open in ipairs(open_cycles(id)) do
    if open ~= cycle then left[#left + 1] = open end
  end
  save_open_cycles(id, left)
  retain(id)
  return eid
end

-- Calls `act` with the entry of each verification of an attempt that has no result.
local function each_pending(id, n, act)
  local key = attempt_key(id, n)
  if redis.call('HGET', key, 'state') ~= 'verifying' then return end
  for index in string.gmatch(redis.call('HGET', key, 'verifications') or '', '%d+') do
    if redis.call('HEXISTS', key, 'result:' .. index) == 0 then act(verification_entry(id, n, index)) end
  end
end

-- Ends a job and its open cycles. The cycles of a job that succeeded stay open to be re-checked.
local function finish(id, old, state, reason, detail, failure)
  local key = job_key(id)
  redis.call('HSET', key, 'state', state, 'waiting_for', '', 'waiting_behind', '',
    'updated_at', stamp(NOW), 'reason', reason or '', 'detail', detail or '',
    'finished_at', stamp(NOW))
  index_state(id, old, state)
  local job = redis.call('HMGET', key, 'attempt', 'tokens', 'task_type', 'tenant', 'lane', 'on_done',
    'memory', 'open_cycles', 'of_loop', 'item')
  local data = { state = state, reason = reason, attempts = tonumber(job[1]),
    tokens = tonumber(job[2]) or cjson.null, task_type = job[3], tenant = job[4] or nil,
    first_try = state == 'succeeded' and job[1] == '1' }
  local entry = attempt_entry(id, job[1])
  if job[5] then
    redis.call('ZREM', P .. 'lane:' .. job[5], entry)
    let_go(job[5], entry)
  end
  redis.call('ZREM', P .. 'stale', 'j:' .. id)
  -- An attempt that still runs keeps its slots until its worker reports or its lease expires.
  if not FREED[entry] and not redis.call('ZSCORE', P .. 'leases', entry) then
    free_slots(entry, holdings_of(entry))
  end
  if state == 'escalated' then
    data.signature, data.escalation = escalate(id .. ':' .. job[1], id, job[1], nil, reason, detail, failure)
  end
  if state ~= 'succeeded' then
    each_pending(id, job[1], function(pending)
      drop_entry(pending)
      if not redis.call('ZSCORE', P .. 'leases', pending) then free_slots(pending, holdings_of(pending)) end
    end)
    for _, cycle in ipairs(open_cycles(id)) do end_cycle(id, cycle, state, reason or state) end
    save_open_cycles(id, {})
  end
  if job[6] then enqueue('d:' .. id .. '/1', job[6], 5, NOW) end
  if job[9] then end_item(id, job[1], job[9], job[10], state, reason) end
  event('job', id, data)
  if state ~= 'succeeded' or (job[8] or '') == '' then expire_job(id, job[1], job[7]) end
  return data.escalation
end

-- A job that ended outside a delivery: if it is a user's task, its message is sent once more. A worker
-- finds the job finished and reports that to the caller, the chord and the errbacks.
local function report_to_caller(id)
  local job = redis.call('HMGET', job_key(id), 'caller', 'attempt')
  if job[1] then enqueue(attempt_entry(id, job[2]), 'attempt', 5, NOW) end
end

-- A pending cycle stays open with its job; one without a retry ends at once.
local function open_cycle(id, n, cycle, reason)
  local key = cycle_key(cycle.id)
  if redis.call('EXISTS', key) == 1 then return end
  redis.call('HSET', key, 'job_id', id, 'source_attempt', n, 'loop_index', cycle.loop,
    'status', cycle.status, 'created_at', stamp(NOW), 'metadata', cycle.metadata,
    'tenant', redis.call('HGET', job_key(id), 'tenant') or '')
  redis.call('ZADD', P .. 'cycles', NOW, cycle.id)
  keep_incarnation(id)
  redis.call('HSET', job_key(id), 'loop', cycle.loop)
  if cycle.status ~= 'pending_immediate_retry' then
    return end_cycle(id, cycle.id, cycle.status, reason)
  end
  local cycles = open_cycles(id)
  cycles[#cycles + 1] = cycle.id
  save_open_cycles(id, cycles)
  event('cycle', id, { cycle = cycle.id, status = cycle.status })
end

-- Schedules a delayed verification: on a queue, or in the lane of its subject. A lane may never be
-- asked again, so the sweep ends a stale one.
local function await_verification(id, cycle, queue, lane, at)
  if queue == 'lane' then
    offer(lane, 'c:' .. cycle, 'delayed_verification', at)
    redis.call('ZADD', P .. 'stale', at + (R.stale_ms or 259200000), cycle)
  else
    enqueue('c:' .. cycle, queue, 5, at)
  end
end

-- The same as in policies/jobs/routing.py; a contract test compares them.
local function queue_of(mode, pool)
  if not given(pool) then return mode == 'immediate_retry' and 'repair' or 'attempt' end
  return mode == 'immediate_retry' and pool .. '.repair' or pool
end

-- Retries and their verifications go to the front.
local function priority_of(mode, priority) return mode == 'initial' and tonumber(priority) or 0 end

-- Returns all that a worker needs to run, verify or settle an attempt.
local function attempt_view(verb, id, n)
  local job = redis.call('HMGET', job_key(id), 'body', 'memory', 'tokens', 'seconds', 'loop',
    'spent_tokens', 'spent_seconds', 'repair_seconds', 'money', 'spent_money', 'charged:tokens',
    'charged:seconds', 'charged:money')
  local key = attempt_key(id, n)
  local attempt = redis.call('HMGET', key, 'plan', 'output', 'faults', 'verifications', 'provider',
    'allowance')
  local memory = job[2] and redis.call('HGETALL', P .. job[2]) or {}
  local results = {}
  for index in string.gmatch(attempt[4] or '', '%d+') do
    results[#results + 1] = index
    results[#results + 1] = redis.call('HGET', key, 'result:' .. index) or ''
  end
  -- Spending before a requeue does not count. Items are charged for lost and unreported work, too.
  local function used(total, before, charged)
    return math.max(tonumber(total or '0') - tonumber(before or '0'), tonumber(charged or '0'))
  end
  local tokens, seconds = used(job[3], job[6], job[11]), used(job[4], job[7], job[12])
  return { verb, job[1], attempt[1] or '', attempt[2] or '', memory, int(tokens),
           string.format('%.6f', seconds), job[5] or '0', attempt[3] or '0', results,
           job[8] or '0', attempt[5] or '', '', attempt[6] or '',
           string.format('%.9f', used(job[9], job[10], job[13])) }
end

-- Writes a job and the outbox entry of its first attempt. Returns whether to publish it now.
local function store_job(id, job)
  local key, entry, tenant = job_key(id), attempt_entry(id, 1), given(job.tenant) and job.tenant
  -- No field `tokens`: usage that was not reported is unknown, not 0.
  redis.call('HSET', key, 'body', job.body, 'digest', job.digest, 'task_type', job.task_type,
    'name', job.name, 'memory', given(job.memory) and job.memory or 'memory:job:' .. id, 'attempt', 1,
    'loop', 0, 'seconds', 0, 'schema', 1, 'created_at', stamp(NOW),
    'deadline_at', stamp(NOW + job.deadline_ms), 'deadline_ms', job.deadline_ms,
    'priority', job.priority)
  raise_schema(id, job)
  if given(job.on_done) then redis.call('HSET', key, 'on_done', job.on_done) end
  if tenant then redis.call('HSET', key, 'tenant', tenant) end
  if given(job.owner) then redis.call('HSET', key, 'owner', job.owner) end
  if given(job.pool) then redis.call('HSET', key, 'pool', job.pool) end
  if given(job.caller) then redis.call('HSET', key, 'caller', 1) end
  if given(job.of_loop) then
    redis.call('HSET', key, 'of_loop', job.of_loop, 'item', job.item)
    if given(job.merge_group) then redis.call('HSET', key, 'merge_group', job.merge_group) end
    redis.call('PERSIST', P .. job.memory)
  end
  redis.call('HSET', attempt_key(id, 1), 'mode', 'initial', 'state', 'queued',
    'queued_at', stamp(NOW), 'runner', job.runner)
  set_state(id, nil, 'queued')
  redis.call('ZADD', P .. 'jobs', NOW, id)
  event('job', id, { state = 'queued', task_type = job.task_type, name = job.name, tenant = tenant or nil })
  if given(job.lane) then
    redis.call('HSET', key, 'lane', job.lane)
    offer(job.lane, entry, 'initial', NOW)
    await_deadline(id, NOW + job.deadline_ms)
    return false
  end
  local queue = queue_of('initial', job.pool)
  local gates = attempt_gates(queue, job.task_type, tenant, provider_of(job.runner))
  add_item(gates, id, given(job.of_loop) and job.of_loop, true)
  return make_due(entry, queue, job.priority, gates)
end

-- Leaves an entry to a worker of a later release: it is published again after a delay that doubles
-- up to a minute. However many jobs wait, about 50 of a partition come back in a second. `key` is
-- the hash of the attempt or the cycle.
local function leave_to_newer(entry, id, key)
  local kind, _, n, index = parse_entry(entry)
  local job = redis.call('HMGET', job_key(id), 'state', 'deadline_at', 'priority', 'lane',
    'verify_on', 'schema', 'release', 'pool')
  local why = string.format('a worker of version %s or later (schema %s)', job[7] or '?', job[6])
  take_entry(entry)
  if kind ~= 'c' and tonumber(job[2]) < NOW then
    finish(id, job[1], 'escalated', 'deadline', 'the job\'s deadline passed; it waited for ' .. why)
    return { 'escalated', 'deadline' }
  end
  local times = redis.call('HINCRBY', key, 'left_to_newer:' .. index, 1)
  local delay = math.max(math.min(1000 * 2 ^ math.min(times - 1, 6), 60000),
    20 * redis.call('ZCARD', P .. 'jobs:' .. 'waiting'))
  if kind == 'c' then
    redis.call('HSETNX', key, 'first_due_at', redis.call('HGET', key, 'due_at'))
    redis.call('HSET', key, 'due_at', stamp(NOW + delay))
    await_verification(id, cycle_of(entry), job[5] or 'verify', job[4], NOW + delay)
    return { 'newer', why }
  end
  local attempt = redis.call('HMGET', key, 'mode', 'output')
  if kind == 'a' and job[4] and not attempt[2] then
    offer(job[4], entry, attempt[1], NOW + delay)
  else
    local queue = kind == 'v' and 'verify' or queue_of(attempt[1], job[8])
    enqueue(entry, queue, priority_of(attempt[1], job[3]), NOW + delay)
  end
  if times == 1 then
    event('attempt', id, { attempt = tonumber(n), state = 'waiting', waiting_for = 'version',
      needs_release = job[7] or nil, needs_schema = tonumber(job[6]) })
  end
  set_state(id, job[1], 'waiting', 'version')
  return { 'newer', why }
end
