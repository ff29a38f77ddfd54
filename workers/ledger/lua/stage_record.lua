-- Keep a record of a loop that is imported until the loop is written. If that never happens, it expires.
local key = P .. 'arriving:' .. R.token .. ':' .. R.name
redis.call('DEL', key)
for field, value in pairs(R.fields) do redis.call('HSET', key, field, value) end
redis.call('PEXPIRE', key, 3600000)
return {}
