-- What reports need of some cycles, and no more: their metadata holds prompts. One text, because
-- tables cost more than all the rest. A cycle that has ended never changes, so its line is kept.
local BETWEEN, AFTER = '\31', '\30'
local ENDED = { completed = true, escalated = true, cancelled = true }

-- No value holds a separator.
local function clean(value) return (string.gsub(value or '', '%c', ' ')) end

local function line(id, key)
  local c = redis.call('HMGET', key, 'status', 'created_at', 'immediate_at', 'delayed_invalid',
    'tenant', 'reason', 'delayed_valid', 'metadata')
  if not c[1] then return nil end
  local about = cjson.decode(c[8] or '{}')
  local function text(value) return type(value) == 'string' and value or '' end
  -- A cycle without a tenant takes that of its job, as long as the job is kept.
  local tenant = c[5] or redis.call('HGET', job_key(string.match(id, '^(.*):%d+:%d+$')), 'tenant')
  local found = { c[1], c[2], c[3] or '', c[4] or '', clean(tenant), clean(text(about.taskType)),
    clean(text(about.causeLabel)), clean(c[6]), c[7] or '', id }
  local made = table.concat(found, BETWEEN)
  if ENDED[c[1]] then redis.call('HSET', key, 'row', made) end
  return made
end

local rows = {}
for _, id in ipairs(R.ids) do
  local key = cycle_key(id)
  rows[#rows + 1] = redis.call('HGET', key, 'row') or line(id, key)
end
return { table.concat(rows, AFTER) }
