-- A job with its attempts and cycles as they are at one moment: rows read one after the other
-- would show a state from before a step beside an attempt from after it.
local job = redis.call('HGETALL', job_key(R.id))
if #job == 0 then return { job } end
local at = {}
for i = 1, #job, 2 do at[job[i]] = job[i + 1] end
local attempts, cycles = {}, {}
local loops = math.max(tonumber(at.loop), tonumber(at.past_loops or '0'))
for n = 1, tonumber(at.attempt) do
  attempts[n] = redis.call('HGETALL', attempt_key(R.id, n))
  for loop = 1, loops do
    local id = string.format('%s:%d:%d', R.id, n, loop)
    local row = redis.call('HGETALL', cycle_key(id))
    if #row > 0 then cycles[#cycles + 1] = { id, row } end
  end
end
return { job, attempts, cycles }
