-- Send quarantined entries again, or drop them: those of `entries`, or all. With `tenant`, only its own.
local done = {}
local entries = given(R.entries) and R.entries or redis.call('ZRANGE', P .. 'outbox:quarantined', 0, -1)
for _, entry in ipairs(entries) do
  local text = redis.call('HGET', P .. 'outbox:quarantine', entry)
  local read, found = pcall(cjson.decode, text or '')
  -- A row that cannot be read can still be dropped or sent again.
  if not read or type(found) ~= 'table' then found = text and {} end
  if found and (not given(R.tenant) or found.tenant == R.tenant) then
    if R.verb == 'drop' then
      leave_quarantine(entry)
      end_escalation(found.escalation or '', 'resolved', R.by, 'dropped from the outbox')
      done[#done + 1] = entry
    elseif release(entry, tonumber(found.at) or NOW) then
      leave_quarantine(entry)
      end_escalation(found.escalation or '', 'requeued', R.by, 'sent again')
      done[#done + 1] = entry
    end
  end
end
return done
