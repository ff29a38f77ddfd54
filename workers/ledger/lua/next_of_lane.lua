-- Find the next entry of a subject: its mandatory retry, then the work that it holds, then the first
-- due one. What it holds has a token. What a pause or a quota holds back is skipped, and so is the
-- work of other owners, if one asks.
local lane = P .. 'lane:' .. R.lane
local function of_another(entry)
  if not given(R.owner) then return false end
  local _, id = parse_entry(entry)
  local owner = redis.call('HGET', job_key(id), 'owner')
  return owner and owner ~= R.owner
end
local function held_in(name)
  local slot = slot_of(R.lane, R.owner)
  local found = held_work(name, slot)
  if not found then redis.call('HDEL', P .. name, slot) end
  return found
end
-- Whether an entry can be claimed. The job of one that is held back shows what it waits for.
local function availability(entry)
  if of_another(entry) then return 'held' end
  local kind, id, n = parse_entry(entry)
  if kind == 'c' then return 'free' end
  local job = redis.call('HMGET', job_key(id), 'state', 'task_type', 'tenant', 'waiting_for')
  local attempt = redis.call('HMGET', attempt_key(id, n), 'state', 'mode')
  if not job[1] or TERMINAL[job[1]] or attempt[1] ~= 'queued' then return 'gone' end
  local why = held_back(entry, attempt_gates(queue_of(attempt[2]), job[2], job[3]))
  if not why then return 'free' end
  if job[4] ~= why then set_state(id, job[1], 'waiting', why) end
  return 'held'
end
local PAGE = 50
local function first_of(rank)
  local first, passed, found = rank * 1e14, 0, nil
  repeat
    found = redis.call('ZRANGEBYSCORE', lane, first, stamp(first + NOW), 'LIMIT', passed, PAGE)
    for _, entry in ipairs(found) do
      local status = availability(entry)
      if status == 'free' then return { 'next', entry } end
      if status == 'held' then passed = passed + 1 else redis.call('ZREM', lane, entry) end
    end
  until #found < PAGE
end
local RETRIES = RANK.immediate_retry
local found = held_in('retrying') or first_of(RETRIES) or held_in('holding')
for rank = RETRIES + 1, RANK.initial do found = found or first_of(rank) end
return found or { 'none' }
