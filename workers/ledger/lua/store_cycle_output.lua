-- Store the answer of a reformulated delayed verification, so that it is never requested again.
local key = cycle_key(R.cycle)
local cycle = redis.call('HMGET', key, 'token', 'output_by', 'provider', 'released', 'job_id')
if cycle[1] ~= R.token then return { 'lost' } end
if cycle[2] == R.token then return { 'stored', cycle[4] or '' } end
redis.call('HSET', key, 'output', R.output, 'output_by', R.token)
local entry = 'c:' .. R.cycle
answered(entry, cycle[3], R)
free_provider(entry, cycle[3])
local id = cycle[5]
if redis.call('EXISTS', job_key(id)) == 1 then
  raise_schema(id)
  if given(R.tokens) then spend(id, redis.call('HGET', job_key(id), 'tenant'), R.tokens) end
end
return { 'stored', keep_released(key, cycle[4]) }
