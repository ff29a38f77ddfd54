-- Shared by the scripts, with loops.lua: what loops have to do with each other. Locks on files, waits for
-- items of other loops and for events, and the decisions about all of that.

-- The loops that wait for an item or an event of a tenant: see `ItemSpec.outer_waits`.
local function waiters_key(tenant, wait) return P .. 'loops:waiters:' .. tenant .. '/' .. wait end

-- Plans the loops that wait for something. A plan of one that was made before is stale, because an item
-- that it lets begin may have to wait again.
local function touch_waiting(tenant, wait)
  for _, other in ipairs(redis.call('SMEMBERS', waiters_key(tenant, wait))) do
    redis.call('HINCRBY', loop_key(other), 'version', 1)
    touch_loop(other)
  end
end

-- An event is there as long as an item that gave it off stands by it, or a person: `person`. The items
-- are in a set of their own, the first one at the beginning. Those of people are counted by who gave them off.
local function emitters_key(name) return P .. 'loops:emitters:' .. name end

local function read_event(name)
  local text = redis.call('HGET', P .. 'loops:events', name)
  return text and cjson.decode(text)
end

-- Forgets an event by which nobody stands any more. Returns whether that is so.
local function end_event(name, found)
  if found.person or redis.call('EXISTS', emitters_key(name)) == 1 then
    redis.call('HSET', P .. 'loops:events', name, cjson.encode(found))
    return false
  end
  redis.call('HDEL', P .. 'loops:events', name)
  return true
end

local function add_emitter(name, item)
  redis.call('HSETNX', P .. 'loops:events', name, cjson.encode({ at = NOW / 1000 }))
  redis.call('ZADD', emitters_key(name), 'NX', NOW, item)
end

-- Returns whether the event is gone with that.
local function remove_emitter(name, item)
  local removed = redis.call('ZREM', emitters_key(name), item)
  local found = removed == 1 and read_event(name)
  return found and end_event(name, found)
end

-- Takes back the events of an item, which runs again or is gone: who has not taken them waits again.
local function withdraw_events(loop, item, why)
  local names = redis.call('HGET', loop_key(loop, 'emitted'), item)
  if not names then return end
  local tenant = redis.call('HGET', loop_key(loop), 'tenant') or ''
  redis.call('HDEL', loop_key(loop, 'emitted'), item)
  for name in string.gmatch(string.match(names, '|(.*)$'), '[^\n]+') do
    if remove_emitter(tenant .. '/' .. name, loop .. '/' .. item) then
      note_in_log(loop, name .. ' of ' .. item .. ' is withdrawn: ' .. why, 'planner')
      touch_waiting(tenant, 'event:' .. name)
    end
  end
end

local function add_person(name, person, account)
  local found = read_event(name) or { at = NOW / 1000 }
  found.person, found.account = person, account
  redis.call('HSET', P .. 'loops:events', name, cjson.encode(found))
  redis.call('ZADD', P .. 'loops:given', NOW, name)
  redis.call('HINCRBY', P .. 'loops:signals', account, 1)
end

-- Returns how many events a caller may still give off when these are. `tenant`: whose events they are.
local function signals_left(account, tenant, events)
  local left = R.most_signals - tonumber(redis.call('HGET', P .. 'loops:signals', account) or '0')
  for _, name in ipairs(events) do
    local found = read_event(tenant .. '/' .. name)
    if not found or not found.person then left = left - 1 end
  end
  return left
end

-- Gives an event off for a person. It stays, also if an item that gave it off runs again. Returns whether
-- nobody had.
local function signal_event(tenant, signal, by, account)
  local name = tenant .. '/' .. signal
  local found = read_event(name)
  if found and found.person then return false end
  add_person(name, by, account)
  if found then return false end
  touch_waiting(tenant, 'event:' .. signal)
  return true
end

-- Lets nobody stand by what a person gave off. Returns whether the event is gone with that.
local function remove_person(name, found)
  if redis.call('HINCRBY', P .. 'loops:signals', found.account, -1) <= 0 then
    redis.call('HDEL', P .. 'loops:signals', found.account)
  end
  redis.call('ZREM', P .. 'loops:given', name)
  found.person, found.account = nil, nil
  return end_event(name, found)
end

-- The states of an item that other loops look at.
local SETTLED = { passed = true, skipped = true, failed = true, quarantined = true }

-- Adds a decision to those of all loops: see policies/coordination/decision.py. The oldest goes.
local MOST_DECISIONS = 2000
local function record_decision(decision)
  local number = redis.call('INCR', P .. 'loops:decided')
  decision.id, decision.at = int(number), NOW / 1000
  if not decision.tenant then
    decision.tenant = redis.call('HGET', loop_key(decision.loop), 'tenant') or nil
  end
  redis.call('HSET', P .. 'loops:decisions', decision.id, cjson.encode(decision))
  redis.call('HDEL', P .. 'loops:decisions', int(number - MOST_DECISIONS))
end

-- An item that gives its slot back keeps its files for a while: then others may take them.
local function keep_files(id)
  local text = redis.call('HGET', P .. 'loops:locks', id)
  if not text then return end
  local lock = cjson.decode(text)
  lock.expires = NOW + lock.ttl
  redis.call('HSET', P .. 'loops:locks', id, cjson.encode(lock))
end

-- Returns what an item declares and was seen to change.
local function files_of_item(loop, item)
  local declared = redis.call('HGET', loop_key(loop, 'files'), item)
  local files, seen = declared and cjson.decode(declared) or {}, redis.call('HGET', loop_key(loop, 'seen'), item)
  for _, each in ipairs(seen and cjson.decode(seen) or {}) do files[#files + 1] = each end
  return files
end

-- An item to which an earlier release gave its slot has its files, too, even if others have them.
local function lock_as_live(id)
  local job = redis.call('HMGET', job_key(id), 'of_loop', 'item')
  local space = job[1] and redis.call('HGET', loop_key(job[1]), 'space')
  local files = space and files_of_item(job[1], job[2])
  if not files or #files == 0 then return nil end
  local text = cjson.encode({ loop = job[1], item = job[2], space = space, files = files, token = 'of ' .. id,
    since = NOW / 1000, ttl = 600000 })
  redis.call('HSET', P .. 'loops:locks', id, text)
  return text
end

-- Returns the locks on files as JSON, by job. One whose job has ended, or that has expired, is gone.
local function held_locks()
  local found, all, locked = {}, redis.call('HGETALL', P .. 'loops:locks'), {}
  for i = 1, #all, 2 do locked[all[i]] = true end
  for _, id in ipairs(redis.call('ZRANGE', P .. 'loops:live', 0, -1)) do
    local text = not locked[id] and lock_as_live(id)
    if text then all[#all + 1], all[#all + 2] = id, text end
  end
  for i = 1, #all, 2 do
    local id, lock = all[i], cjson.decode(all[i + 1])
    local state = redis.call('HGET', job_key(id), 'state')
    local ended = not state or TERMINAL[state]
    if redis.call('ZSCORE', P .. 'loops:live', id) or not (ended or (lock.expires and lock.expires <= NOW)) then
      found[#found + 1] = { id, all[i + 1] }
    else
      redis.call('HDEL', P .. 'loops:locks', id)
      if not ended then
        record_decision({ kind = 'lapsed', loop = lock.loop, item = lock.item, files = lock.files, by = 'coordinator',
          text = 'it waits without a slot for so long that others may change its files' })
      end
    end
  end
  return found
end

local function write_outer(loop, outer, emits)
  local before = redis.call('HMGET', loop_key(loop), 'outer', 'tenant', 'emits')
  local tenant = before[2] or ''
  for wait in string.gmatch(before[1] or '', '[^\n]+') do redis.call('SREM', waiters_key(tenant, wait), loop) end
  for wait in string.gmatch(outer, '[^\n]+') do redis.call('SADD', waiters_key(tenant, wait), loop) end
  for name in string.gmatch(before[3] or '', '[^\n]+') do
    redis.call('ZREM', P .. 'loops:sources', tenant .. '/' .. name .. '/' .. loop)
  end
  for name in string.gmatch(emits, '[^\n]+') do
    redis.call('ZADD', P .. 'loops:sources', 0, tenant .. '/' .. name .. '/' .. loop)
  end
  redis.call('HSET', loop_key(loop), 'outer', outer, 'emits', emits)
  redis.call(outer == '' and emits == '' and 'SREM' or 'SADD', P .. 'loops:coupled', loop)
end

-- Notes what items say about others: their files, by item as JSON, what they wait for outside their loop,
-- and which events they give off, in lines. `address`: of the items.
local function declare(loop, declared)
  redis.call('DEL', loop_key(loop, 'files'))
  for item, patterns in pairs(declared.files) do redis.call('HSET', loop_key(loop, 'files'), item, patterns) end
  write_outer(loop, declared.outer, declared.emits)
  redis.call('HSET', loop_key(loop), 'declared', declared.address)
end

-- What items wait for outside their loop, and the state of each.
local function outer_states(loop)
  local found, own = {}, redis.call('HMGET', loop_key(loop), 'outer', 'tenant')
  for wait in string.gmatch(own[1] or '', '[^\n]+') do
    local state = ''
    local signal, other, item = string.match(wait, '^event:(.+)$'), string.match(wait, '^(.-)/(.+)$')
    if signal then
      local by = redis.call('HEXISTS', P .. 'loops:events', (own[2] or '') .. '/' .. signal)
      state = by == 1 and 'emitted' or ''
    elseif other then
      local record = redis.call('HMGET', loop_key(other), 'state', 'tenant')
      if record[1] and (record[2] or '') == (own[2] or '') then
        local record = read_item(other, item)
        local part = record and record.state == 'skipped' and redis.call('HGET', loop_key(other, 'split'), item)
        if part then record = read_item(other, part) end
        state = record and record.state or ''
      end
    end
    found[#found + 1], found[#found + 2] = wait, state
  end
  return found
end

-- What a snapshot of a loop says about what it has to do with others.
local function others_of(loop)
  local found = { outer_states(loop) }
  for i, part in ipairs({ 'split', 'emitted', 'orders', 'seen' }) do
    found[i + 1] = redis.call('HGETALL', loop_key(loop, part))
  end
  return found
end
