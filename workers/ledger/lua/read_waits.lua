-- Read a loop and what it has to do with others, without what all loops ask for.
allow_when_full()
return { redis.call('HGETALL', loop_key(R.loop)), redis.call('HGETALL', loop_key(R.loop, 'items')), others_of(R.loop) }
