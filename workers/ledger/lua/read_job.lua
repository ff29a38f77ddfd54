-- Read a job with its attempts and cycles at one moment: separate reads could show a state from
-- before a step beside an attempt from after it.
local job = redis.call('HGETALL', job_key(R.id))
if #job == 0 then return { job } end
local fields = {}
for i = 1, #job, 2 do fields[job[i]] = job[i + 1] end
local attempts, cycles = {}, {}
-- A damaged number counts as 0: the rest can be shown.
local function number(text) return tonumber(text or '') or 0 end
local loops = math.max(number(fields.loop), number(fields.past_loops))
for n = 1, number(fields.attempt) do
  attempts[n] = redis.call('HGETALL', attempt_key(R.id, n))
  for loop = 1, loops do
    local id = string.format('%s:%d:%d', R.id, n, loop)
    local row = redis.call('HGETALL', cycle_key(id))
    if #row > 0 then cycles[#cycles + 1] = { id, row } end
  end
end
return { job, attempts, cycles }
