-- Cancel a job that has not ended. A running attempt goes on, but its result has no effect. A task
-- that ended itself with one of Celery's signals has reported that (`signalled`).
allow_when_full()
local state = redis.call('HGET', job_key(R.id), 'state')
if not state then return { 'gone' } end
if TERMINAL[state] then return { state } end
local n = tonumber(redis.call('HGET', job_key(R.id), 'attempt'))
drop_entry(attempt_entry(R.id, n))
finish(R.id, state, 'cancelled', R.signalled and 'signalled' or 'cancelled', R.detail)
if not R.signalled then report_to_caller(R.id) end
return { 'cancelled' }
