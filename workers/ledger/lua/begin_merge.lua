-- Hand an attempt whose other verifiers are satisfied over to its merge, which is the last one. The
-- results so far are stored with it, so that none can change.
local key = attempt_key(R.id, R.n)
local attempt = redis.call('HMGET', key, 'token', 'handed_by', 'mode')
local state = redis.call('HGET', job_key(R.id), 'state')
local merge = verification_entry(R.id, R.n, R.index)
local priority = priority_of(attempt[3], R.priority)
local function handed() return { 'handed', priority, is_parked(merge) and '' or 'due' } end
if attempt[2] == R.token then return handed() end -- a repeated call, whose first answer was lost
if attempt[1] ~= R.token then return { 'lost' } end
if TERMINAL[state] then return { 'finished' } end
local listed = {}
for index, result in pairs(R.results) do
  redis.call('HSET', key, 'result:' .. index, result)
  listed[#listed + 1] = tonumber(index)
end
listed[#listed + 1] = R.index
table.sort(listed)
redis.call('HSET', key, 'state', 'verifying', 'token', '', 'handed_by', R.token, 'pending', 1,
  'merge', int(R.index), 'merge_begun_at', stamp(NOW), 'verifications', table.concat(listed, ' '))
raise_schema(R.id)
drop_lease(attempt_entry(R.id, R.n))
make_due(merge, 'verify', priority, verification_gates(R.id, R.n, R.index))
event('attempt', R.id, { attempt = R.n, state = 'merging' })
return handed()
