-- Say which provider the runner of a claimed entry asks, and take a slot of that provider. From then
-- on every claim of this runner is checked by the claim itself. If the provider has no slot now, the
-- claim ends and the entry waits.
local kind, id, n = parse_entry(R.entry)
local key = record_key(R.entry)
local record = redis.call('HMGET', key, 'token', 'provider')
if record[1] ~= R.token then return { 'lost' } end
local attempt = kind == 'c' and redis.call('HGET', job_key(id), 'best') or n
local runner = redis.call('HGET', attempt_key(id, attempt), 'runner')
if runner and runner ~= '' then
  -- Inline definitions are many: a full table forgets one of them.
  if redis.call('HLEN', P .. 'providers') >= 10000 then
    redis.call('HDEL', P .. 'providers', redis.call('HRANDFIELD', P .. 'providers'))
  end
  redis.call('HSET', P .. 'providers', runner, R.provider)
end
redis.call('SADD', S .. 'gates', R.provider)
if record[2] == R.provider then return { 'named' } end
free_provider(R.entry, record[2])
local gates = add_slots({}, R.provider)
local why, behind = held_back(R.entry, gates)
if not why then
  take_slots(R.entry, gates, LEASED + NOW)
  return { 'named' }
end
redis.call('HSET', key, 'token', '')
redis.call('HINCRBY', key, 'claims', -1)
redis.call('HSET', key, 'shared', '1')
drop_lease(R.entry)
local state = redis.call('HGET', job_key(id), 'state')
if kind == 'a' and TERMINAL[state] then
  release_ended(id, R.entry)
  return { 'finished' }
end
if kind == 'a' then redis.call('HSET', key, 'state', 'queued') end
park(R.entry, behind, why)
return { WAITS[why], behind }
