-- The fields of cycles that reports need, without the prompts in their metadata. The answer is one
-- text, because building tables costs most. A cycle that has ended never changes, so its row is kept.
local FIELD_SEPARATOR, ROW_SEPARATOR = '\31', '\30'
local ENDED = { completed = true, escalated = true, cancelled = true }

-- Values may not contain separators.
local function clean(value) return (string.gsub(value or '', '%c', ' ')) end

local function read_row(id, key)
  local c = redis.call('HMGET', key, 'status', 'created_at', 'immediate_at', 'delayed_invalid',
    'tenant', 'reason', 'delayed_valid', 'metadata')
  if not c[1] then return nil end
  local readable, about = pcall(cjson.decode, c[8] or '{}')
  if not readable or type(about) ~= 'table' then about = {} end
  local function text(value) return type(value) == 'string' and value or '' end
  -- A cycle without a tenant has that of its job, as long as the job is kept.
  local tenant = c[5] or redis.call('HGET', job_key(string.match(id, '^(.*):%d+:%d+$')), 'tenant')
  local values = { c[1], c[2] or '', c[3] or '', c[4] or '', clean(tenant), clean(text(about.taskType)),
    clean(text(about.causeLabel)), clean(c[6]), c[7] or '', id }
  local row = table.concat(values, FIELD_SEPARATOR)
  if ENDED[c[1]] then redis.call('HSET', key, 'row', row) end
  return row
end

local rows = {}
for _, id in ipairs(R.ids) do
  local key = cycle_key(id)
  rows[#rows + 1] = redis.call('HGET', key, 'row') or read_row(id, key)
end
return { table.concat(rows, ROW_SEPARATOR) }
