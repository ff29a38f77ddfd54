-- Cancel a job that has not ended. A running attempt goes on, but its result has no effect.
allow_when_full()
local state = redis.call('HGET', job_key(R.id), 'state')
if not state then return { 'gone' } end
if TERMINAL[state] then return { state } end
local n = tonumber(redis.call('HGET', job_key(R.id), 'attempt'))
drop_entry(attempt_entry(R.id, n))
finish(R.id, state, 'cancelled', 'cancelled', R.detail)
return { 'cancelled' }
