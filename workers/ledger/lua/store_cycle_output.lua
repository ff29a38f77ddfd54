-- Store the answer of a reformulated delayed verification: it was paid for.
local key = cycle_key(R.cycle)
local cycle = redis.call('HMGET', key, 'token', 'output_by')
if cycle[1] ~= R.token then return { 'lost' } end
if cycle[2] == R.token then return { 'stored' } end
redis.call('HSET', key, 'output', R.output, 'output_by', R.token)
if given(R.tokens) then
  local job = job_key(redis.call('HGET', key, 'job_id'))
  if redis.call('EXISTS', job) == 1 then
    redis.call('HINCRBY', job, 'tokens', R.tokens)
    local tenant = redis.call('HGET', job, 'tenant')
    if tenant then
      redis.call('INCRBY', spent_key(tenant), R.tokens)
      expire(spent_key(tenant), 172800000)
    end
  end
end
return { 'stored' }
