-- Write the beat of a worker; also when Redis is full, so that its page shows who waits.
allow_when_full()
redis.call('HSET', P .. 'workers', R.field, R.beat)
return {}
