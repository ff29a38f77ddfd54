-- Read a job with its attempts and cycles at one moment: separate reads could show a state from
-- before a step beside an attempt from after it.
local job = redis.call('HGETALL', job_key(R.id))
if #job == 0 then return { job } end
local fields = {}
for i = 1, #job, 2 do fields[job[i]] = job[i + 1] end
local attempts, cycles = {}, {}
-- An attempt has at most one cycle, and no more of them came before than attempts. In all, so many are
-- looked for that a damaged number does not keep Redis busy.
local loops, left = math.max(attempts_of(fields.loop), attempts_of(fields.past_loops)), 20000
local function cycle_of_attempt(n)
  for loop = 1, math.min(loops, n) do
    left = left - 1
    if left < 0 then return end
    local id = string.format('%s:%d:%d', R.id, n, loop)
    local row = redis.call('HGETALL', cycle_key(id))
    if #row > 0 then return { id, row } end
  end
end
for n = 1, attempts_of(fields.attempt) do
  attempts[n] = redis.call('HGETALL', attempt_key(R.id, n))
  cycles[#cycles + 1] = cycle_of_attempt(n)
end
return { job, attempts, cycles }
