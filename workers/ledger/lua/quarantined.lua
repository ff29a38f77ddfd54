-- Send quarantined entries again, or drop them: those of `entries`, or all. With `tenant`, only its own.
local done = {}
local entries = given(R.entries) and R.entries or redis.call('ZRANGE', P .. 'outbox:quarantined', 0, -1)
for _, entry in ipairs(entries) do
  local text = redis.call('HGET', P .. 'outbox:quarantine', entry)
  local found = text and cjson.decode(text)
  if found and (not given(R.tenant) or found.tenant == R.tenant) then
    if R.verb == 'drop' then
      leave_quarantine(entry)
      end_escalation(found.escalation, 'resolved', R.by, 'dropped from the outbox')
      done[#done + 1] = entry
    elseif release(entry, found.at) then
      leave_quarantine(entry)
      end_escalation(found.escalation, 'requeued', R.by, 'sent again')
      done[#done + 1] = entry
    end
  end
end
return done
