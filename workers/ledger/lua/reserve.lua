-- Reserve an idempotency key, in its own partition, for a job that lives in another one. So the key alone
-- decides which job it belongs to. If the caller dies before it stores the job, the same job finds
-- the reservation and uses it; another job may replace it after a while.
local answer = job_of_key(R.home) or reserved_elsewhere(R.home)
if answer then return answer end
-- For longer than the job is kept, even if people requeue it once it has ended.
local kept = 2 * ((R.retention_ms or 604800000) + (R.cycle_retention_ms or 34560000000)) + R.deadline_ms
redis.call('SET', reservation_key(R.home), R.id .. '|' .. stamp(NOW), 'PX', int(kept))
return { 'reserved', stamp(NOW) }
