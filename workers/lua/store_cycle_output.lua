-- Keep the answer of a delayed verification in other words: it was paid for.
local key = cycle_key(R.cycle)
if redis.call('HGET', key, 'token') ~= R.token then return { 'lost' } end
redis.call('HSET', key, 'output', R.output)
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
