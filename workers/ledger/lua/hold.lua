-- Read the entry that a subject holds, to report on it. Requires its token.
local kind, id, n = parse_entry(R.entry)
local lease = redis.call('ZSCORE', P .. 'leases', R.entry)
if too_new(id) then return { 'newer' } end
if kind == 'c' then
  local key = cycle_key(cycle_of(R.entry))
  local cycle = redis.call('HMGET', key, 'token', 'status', 'output', 'settled_by')
  if not cycle[2] then return { 'gone' } end
  if cycle[2] ~= 'pending_delayed_verification' then
    return { cycle[4] == R.token and 'settled' or 'finished' }
  end
  if cycle[1] ~= R.token or expired(lease) then return { 'lost' } end
  local best = redis.call('HGET', job_key(id), 'best')
  if not best then return { 'gone' } end
  local answer = attempt_view('held', id, tonumber(best))
  answer[13] = cycle[3] or ''
  return answer
end
local attempt = redis.call('HMGET', attempt_key(id, n), 'token', 'state', 'settled_by', 'output_by')
if not attempt[2] then return { 'gone' } end
if attempt[2] == 'settled' then
  return { attempt[3] == R.token and 'settled' or 'finished' }
end
if attempt[2] == 'verifying' and attempt[4] == R.token then return { 'verifying' } end
if attempt[1] ~= R.token or expired(lease) then return { 'lost' } end
return attempt_view('held', id, tonumber(n))
