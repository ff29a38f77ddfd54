-- Publishing only stamps an entry; the claim removes it, so a message lost in the broker's client
-- is noticed. Each repeat doubles the wait. A worker may be faster than this stamp: an entry that
-- was claimed and given back meanwhile is not stamped.
allow_when_full()
local failures = redis.call('EXISTS', P .. 'outbox:failures') == 1
for _, entry in ipairs(R.entries) do
  local e = read_entry(entry)
  if parse_entry(entry) == 'd' then
    drop_entry(entry) -- an outcome is not claimed
  elseif e and e.published >= 0 then
    if failures then redis.call('HDEL', P .. 'outbox:failures', entry) end
    e.published = NOW
    local moved = given(R.moved) and R.moved[entry]
    if moved then
      e.queue, e.priority = moved[1], moved[2]
      -- The sweep asks whether the queues that are named here are empty.
      redis.call('HSETNX', P .. 'watermarks', watermark(e.queue, e.priority), '0')
    end
    write_entry(entry, e)
    check_again(entry, NOW + R.republish_ms * 2 ^ math.min(e.tries, 10))
  end
end
return #R.entries
