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

-- An event is there as long as an item that gave it off stands by it, or a person: `person`. Those of
-- people are counted for each tenant; those of items are as many as their loops may have.
local function read_event(name)
  local text = redis.call('HGET', P .. 'loops:events', name)
  return text and cjson.decode(text)
end

local function write_event(name, found)
  if #found.by > 0 or found.person then
    redis.call('HSET', P .. 'loops:events', name, cjson.encode(found))
    return true
  end
  redis.call('HDEL', P .. 'loops:events', name)
  return false
end

local function add_emitter(name, item)
  local found = read_event(name) or { at = NOW / 1000, by = {} }
  for _, each in ipairs(found.by) do
    if each == item then return end
  end
  if #found.by < 100 then found.by[#found.by + 1] = item end
  write_event(name, found)
end

-- Returns whether the event is gone with that.
local function remove_emitter(name, item)
  local found, kept = read_event(name), {}
  if not found then return false end
  for _, each in ipairs(found.by) do
    if each ~= item then kept[#kept + 1] = each end
  end
  if #kept == #found.by then return false end
  found.by = kept
  return not write_event(name, found)
end

-- Lets nobody stand by what a person gave off. Returns whether somebody did.
local function remove_person(tenant, name)
  local found = read_event(tenant .. '/' .. name)
  if not found or not found.person then return false end
  found.person = nil
  write_event(tenant .. '/' .. name, found)
  if redis.call('HINCRBY', P .. 'loops:signals', tenant, -1) <= 0 then
    redis.call('HDEL', P .. 'loops:signals', tenant)
  end
  return true
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
  local before = redis.call('HMGET', loop_key(loop), 'outer', 'tenant')
  for wait in string.gmatch(before[1] or '', '[^\n]+') do
    redis.call('SREM', waiters_key(before[2] or '', wait), loop)
  end
  for wait in string.gmatch(outer, '[^\n]+') do redis.call('SADD', waiters_key(before[2] or '', wait), loop) end
  redis.call('HSET', loop_key(loop), 'outer', outer)
  redis.call(outer == '' and not emits and 'SREM' or 'SADD', P .. 'loops:coupled', loop)
end

-- Notes what items say about others: their files, by item as JSON, what they wait for outside their loop,
-- in lines, and whether they give events off. `address`: of the items.
local function declare(loop, declared)
  redis.call('DEL', loop_key(loop, 'files'))
  for item, patterns in pairs(declared.files) do redis.call('HSET', loop_key(loop, 'files'), item, patterns) end
  write_outer(loop, declared.outer, declared.emits)
  redis.call('HSET', loop_key(loop), 'declared', declared.address)
end
