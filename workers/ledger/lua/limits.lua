-- Replace the configured limits: `tenant:<name>` → concurrency|tokens a day, `provider:<name>` →
-- calls at once, `tokens:<name>` → a provider's tokens a minute. Entries that a removed limit held back are released by the sweep.
redis.call('DEL', S .. 'limits')
for name, value in pairs(R.limits) do redis.call('HSET', S .. 'limits', name, value) end
if R.digest ~= '' then redis.call('HSET', S .. 'limits', 'digest', R.digest) end
return { 'written' }
