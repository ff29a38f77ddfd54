-- Count entries that could not be sent. The sweep tries them again, later each time; after `max`
-- failures they are quarantined. An entry that was claimed or sent meanwhile is left alone.
local quarantined = {}
for _, failure in ipairs(R.failures) do
  local entry = failure.entry
  local e = read_entry(entry)
  local known = failures_of(entry)
  if e and e.published >= 0 and known.token ~= R.token then
    known = { count = known.count + 1, error = brief(failure.error), token = R.token }
    if known.count >= R.max then
      quarantine(entry, 'unsendable', failure.error, known.count)
      quarantined[#quarantined + 1] = entry
    else
      redis.call('HSET', P .. 'outbox:failures', entry, cjson.encode(known))
      e.published = 0
      write_entry(entry, e)
      redis.call('ZADD', P .. 'outbox', 'XX', NOW + R.grace_ms * 2 ^ known.count, entry)
    end
  end
end
return quarantined
