-- Read a page of jobs, newest first, filtering at most R.scan of them.
-- Returns whether the end was reached, where it stopped (score, id), and a row per job without its
-- body, which may be large. With R.ids, returns the rows of these jobs.
local FIELDS = { 'state', 'task_type', 'name', 'tenant', 'owner', 'waiting_for',
  'waiting_behind', 'reason', 'detail', 'best', 'attempt', 'tokens', 'seconds', 'created_at', 'finished_at', 'body' }
local BATCH = 200

local function matches(row, labels)
  if given(R.name) and string.sub(row.name or '', 1, #R.name) ~= R.name then return false end
  if given(R.task_type) and row.task_type ~= R.task_type then return false end
  if given(R.tenant) and row.tenant ~= R.tenant then return false end
  if given(R.owner) and row.owner ~= R.owner then return false end
  for name, value in pairs(given(R.labels) and R.labels or {}) do
    if labels[name] ~= value then return false end
  end
  return true
end

-- Returns the row of a job as JSON if it passes the filter.
local function read(id)
  local is_hash, values = pcall(redis.call, 'HMGET', job_key(id), unpack(FIELDS))
  if not is_hash then return cjson.encode({ id = id }) end -- the reader names it
  if not values[1] then return nil end
  local row = { id = id }
  for i, name in ipairs(FIELDS) do row[name] = values[i] or nil end
  local readable, body = pcall(cjson.decode, row.body)
  row.body = nil
  readable = readable and type(body) == 'table'
  local labels = readable and type(body.labels) == 'table' and body.labels or {}
  if not matches(row, labels) then return nil end
  row.labels = next(labels) and labels or nil
  row.idempotency_key = readable and given(body.idempotency_key) and body.idempotency_key or nil
  return cjson.encode(row)
end

local rows, scanned, offset = {}, 0, 0
if given(R.ids) then
  for _, id in ipairs(R.ids) do
    local row = read(id)
    if row then rows[#rows + 1] = { '0', row } end
  end
  return { 1, '0', '', rows }
end
local score, last = R.max, R.before
while true do
  local found = redis.call('ZREVRANGEBYSCORE', P .. R.set, R.max, R.min, 'WITHSCORES',
    'LIMIT', int(offset), BATCH)
  offset = offset + BATCH
  for i = 1, #found, 2 do
    local id, at = found[i], found[i + 1]
    -- Jobs with the cursor's time may have been on an earlier page.
    local on_earlier_page = given(R.before) and tonumber(at) == tonumber(R.max) and id >= R.before
    if not on_earlier_page then
      scanned, score, last = scanned + 1, at, id
      local row = read(id)
      if row then rows[#rows + 1] = { at, row } end
      if #rows >= R.limit or scanned >= R.scan then return { 0, score, last, rows } end
    end
  end
  if #found < 2 * BATCH then return { 1, score, last or '', rows } end
end
