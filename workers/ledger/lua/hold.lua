-- Read the entry that a subject holds, to report on it. Requires its token.
local kind, id, n = parse_entry(R.entry)
local lease = redis.call('ZSCORE', P .. 'leases', R.entry)
if too_new(id) then return { 'newer' } end
local function refused_to(holder)
  return { (holder == R.token or expired(lease)) and 'lost' or 'taken' }
end
if kind == 'c' then
  local key = cycle_key(cycle_of(R.entry))
  local cycle = redis.call('HMGET', key, 'token', 'status', 'output', 'settled_by', 'report')
  if not cycle[2] then return { 'gone' } end
  if cycle[2] ~= 'pending_delayed_verification' then
    if cycle[4] ~= R.token then return { 'finished' } end
    return { other_report(cycle[5]) and 'other_report' or 'settled' }
  end
  if cycle[1] ~= R.token or expired(lease) then return refused_to(cycle[1]) end
  local best = redis.call('HGET', job_key(id), 'best')
  if not best then return { 'gone' } end
  local answer = attempt_view('held', id, tonumber(best))
  answer[13] = cycle[3] or ''
  return answer
end
local attempt = redis.call('HMGET', attempt_key(id, n), 'token', 'state', 'settled_by', 'output_by',
  'report')
if not attempt[2] then return { 'gone' } end
if attempt[4] == R.token then
  -- A repeated report. Unless its answer is being settled, this caller does.
  if other_report(attempt[5]) then return { 'other_report' } end
  if attempt[2] == 'settled' or attempt[2] == 'verifying' then return { attempt[2] } end
  if attempt[1] ~= R.token or expired(lease) then return { 'settled' } end
elseif attempt[2] == 'settled' then
  return { attempt[3] == R.token and 'settled' or 'finished' }
elseif attempt[1] ~= R.token or expired(lease) then
  return refused_to(attempt[1])
end
return attempt_view('held', id, tonumber(n))
