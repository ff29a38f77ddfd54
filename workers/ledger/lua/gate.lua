-- Shared by the scripts, after rates.lua: what the ledger learns about a provider from the ends
-- of its calls. `provider:<name>` has:
--   limit                      calls in flight that the provider is given at most
--   slow_start                 below it each answer raises the limit by one; above, `limit` answers do
--   ceiling, ceiling_until     a limit that was refused, and until when it is not tried again
--   hold                       how long that is; doubled each time the ceiling is confirmed
--   decreased_at, floor        the last decrease, and what no refusal of the same burst goes below
--   opens_at, why              no call before then, for the `breaker` or the `provider` itself
--   credits, unpaid_since      how often it refused calls because its credits are used up, and since when
--   credits_at                 the last such refusal, or the answer that ended them
--   faults, first_fault_at     transport faults in a row
--   openings, opened_at        how often the breaker opened without an answer in between
--   last_fault, last_fault_at  what the last fault or refusal was
--   refusals, pauses           refusals in all, and since the last answer
--   rated                      its headers told what is left of an allowance: see rates.lua

local POLICY
-- The thresholds and times of policies/jobs/breaker.py, decoded by the few steps that use them.
local function gate_policy()
  POLICY = POLICY or cjson.decode(R.gate)
  return POLICY
end

local function read_gate(provider)
  local flat, gate = read_learned('HGETALL', provider), {}
  for i = 1, #flat, 2 do
    local text = flat[i] == 'why' or flat[i] == 'last_fault'
    gate[flat[i]] = text and flat[i + 1] or tonumber(flat[i + 1])
  end
  local configured, tokens = configured_limits(provider)
  gate.limit = gate.limit or limit_of(nil, configured)
  return gate, configured, tokens
end

local function write_gate(provider, gate)
  local key, fields = gate_key(provider), {}
  for name, value in pairs(gate) do
    fields[#fields + 1] = name
    fields[#fields + 1] = type(value) == 'number' and stamp(value) or value
  end
  redis.call('DEL', key)
  redis.call('HSET', key, unpack(fields))
  redis.call('SADD', S .. 'gates', provider)
  expire(key, 604800000)
end

local function state_changed(provider, gate, state)
  event('breaker', '', { provider = provider, state = state, faults = gate.faults or 0,
    openings = gate.openings or 0, ['until'] = (gate.opens_at or 0) / 1000 })
end

local function claimed_at(provider, entry)
  local score = tonumber(redis.call('ZSCORE', active_key('provider:' .. provider), entry) or '0')
  return score > LEASED and score - LEASED or 0
end

local function leased_calls(provider)
  return redis.call('ZCOUNT', active_key('provider:' .. provider), LEASED, '+inf')
end

local function close_gate(gate, ms, why)
  local at = NOW + math.min(ms, gate_policy().pause_cap_ms)
  if at > (gate.opens_at or 0) then gate.opens_at, gate.why = at, why end
end

-- Any answer, a refusal too, shows that the provider is there.
local function close_breaker(provider, gate)
  local was_open = (gate.openings or 0) > 0
  gate.faults, gate.first_fault_at, gate.openings = nil, nil, nil
  if not was_open then return end
  if gate.why == 'breaker' then gate.opens_at, gate.why = nil, nil end
  state_changed(provider, gate, 'closed')
end

-- The limit grows only while it is used, and not above a ceiling that was refused lately.
local function grow(provider, gate, configured)
  local reason = 'provider:' .. provider
  local limit = limit_of(gate.limit, configured)
  if slots_taken(reason) < limit or limit_of(gate.limit + 1, configured) <= limit then return false end
  -- Reservations use the limit up, too, but workers that do not claim them need no higher one.
  if 2 * leased_calls(provider) < limit then return false end
  if gate.ceiling then
    local held = NOW < gate.ceiling_until
    if held and gate.limit + 1 >= gate.ceiling then return false end
    if not held and leased_calls(provider) >= gate.ceiling then
      gate.ceiling, gate.ceiling_until, gate.hold = nil, nil, nil
    end
  end
  gate.credit = (gate.credit or 0) + 1
  if gate.limit < (gate.slow_start or math.huge) or gate.credit >= gate.limit then
    gate.limit, gate.credit = gate.limit + 1, 0
  end
  return true
end

-- An answer shows that somebody has paid; one to a call from before the refusal shows nothing.
local function end_credits(provider, gate, entry)
  if not gate.credits or claimed_at(provider, entry) <= gate.credits_at then return false end
  gate.credits, gate.unpaid_since, gate.credits_at = nil, nil, NOW
  state_changed(provider, gate, 'closed')
  return true
end

-- Learns from an answer of a provider. The slot of the call is still taken. `answer`: what it took, and
-- `provider_wait_ms`, how long it asks to send nothing more; nil for an error instead of an answer.
local function answered(entry, provider, answer)
  if (provider or '') == '' then return end
  local gate, configured, tokens = read_gate(provider)
  local told = answer and given(answer.rates)
  if told or tokens or gate.rated then count_call(provider, answer, tokens) end
  local rated = told and not gate.rated
  if rated then gate.rated = 1 end
  local recovered = gate.faults or gate.openings or gate.pauses
  if recovered then
    close_breaker(provider, gate)
    gate.pauses = nil
  end
  recovered = answer and end_credits(provider, gate, entry) or recovered
  local wait_ms = answer and given(answer.provider_wait_ms) and answer.provider_wait_ms
  if wait_ms then close_gate(gate, wait_ms, 'provider') end
  local grown = grow(provider, gate, configured)
  if grown or recovered or rated or wait_ms then write_gate(provider, gate) end
end

-- Retry-After is an order, but one that proves too short is not believed for ever: 0 or a date in
-- the past would make the fleet ask without a break. `pauses`: refusals without an answer in between.
local function refusal_pause(pauses, retry_after_ms)
  local doubled = 2 ^ math.min(pauses - 1, 10)
  if not retry_after_ms then return gate_policy().pause_ms * doubled end
  return math.max(retry_after_ms, math.min(100 * doubled, gate_policy().hold_ms))
end

-- Learns from a 429: the provider is there, and takes fewer calls at once. A burst of refusals
-- settles on the calls that were accepted; it halves the limit at most.
local function refused(entry, retry_after_ms)
  local key = record_key(entry)
  local call = redis.call('HMGET', key, 'provider', 'in_flight')
  local provider = call[1]
  if not provider or provider == '' then return nil end
  local gate, configured = read_gate(provider)
  close_breaker(provider, gate)
  local limit = limit_of(gate.limit, configured)
  local others = leased_calls(provider) - 1
  if claimed_at(provider, entry) > (gate.decreased_at or 0) then
    -- Calls may have ended since this one began, so its own place counts, too.
    local accepted = math.max(others, tonumber(call[2] or '1') - 1)
    gate.floor = math.max(1, math.floor(limit / 2))
    gate.limit = math.max(gate.floor, math.min(limit - 1, accepted))
    gate.decreased_at = NOW
    local base = math.max(gate_policy().hold_ms, gate_policy().hold_pauses * (retry_after_ms or 0))
    local confirmed = gate.ceiling == gate.limit + 1 and gate.hold
    gate.hold = math.min(gate_policy().hold_cap_ms, confirmed and 2 * gate.hold or base)
    gate.pauses = (gate.pauses or 0) + 1
  else
    gate.limit = math.max(gate.floor or 1, math.min(limit, others))
  end
  -- Since the decrease that this refusal belongs to, answers may have ended the pauses and the hold.
  gate.hold = gate.hold or gate_policy().hold_ms
  gate.ceiling, gate.ceiling_until = gate.limit + 1, NOW + gate.hold
  gate.slow_start, gate.credit = gate.limit, 0
  gate.refusals = (gate.refusals or 0) + 1
  gate.last_fault, gate.last_fault_at = R.fault.text, NOW
  close_gate(gate, refusal_pause(gate.pauses or 1, retry_after_ms), 'provider')
  write_gate(provider, gate)
  return provider, gate.opens_at
end

-- For alerts.lua: one alert about a provider for all partitions.
local function alert_about(provider, name, more)
  local key = S .. 'alert:' .. name
  redis.call('HINCRBY', key, 'since_alert', 1)
  redis.call('HSET', key, 'provider', provider, 'reason', more or '')
  expire(key, 604800000)
  redis.call('ZADD', S .. 'alerts:due', NOW, 'b:' .. name)
end

-- Learns that the credits or the quota of a provider are used up: nobody calls it, then one call tries
-- it, and each refusal of that doubles the wait. The limit that was learned stays for later.
local function refused_unpaid(entry, retry_after_ms)
  local provider = redis.call('HGET', record_key(entry), 'provider')
  if not provider or provider == '' then return nil end
  local gate = read_gate(provider)
  close_breaker(provider, gate)
  gate.last_fault, gate.last_fault_at = R.fault.text, NOW
  -- The refusal of a call that began before the last one says nothing new.
  if claimed_at(provider, entry) > (gate.credits_at or 0) then
    gate.credits, gate.credits_at = (gate.credits or 0) + 1, NOW
    gate.unpaid_since = gate.unpaid_since or NOW
    local doubled = gate_policy().credits_ms * 2 ^ math.min(gate.credits - 1, 30)
    local ms = math.min(gate_policy().credits_cap_ms, doubled)
    close_gate(gate, math.max(ms, retry_after_ms or 0), 'provider')
    state_changed(provider, gate, 'out_of_credits')
    alert_about(provider, 'credits:' .. provider, 'credits')
  end
  write_gate(provider, gate)
  return provider, gate.opens_at or NOW
end

local function open_breaker(provider, gate)
  gate.openings = (gate.openings or 0) + 1
  gate.opened_at, gate.limit, gate.credit = NOW, 1, 0
  local ms = math.min(gate_policy().open_cap_ms, gate_policy().open_ms * 2 ^ math.min(gate.openings - 1, 30))
  gate.why = 'breaker'
  gate.opens_at = math.max(gate.opens_at or 0, NOW + ms)
  state_changed(provider, gate, 'open')
  alert_about(provider, provider)
end

-- Learns from a timeout, a 5xx or a refused connection. Some in a row open the breaker; afterwards
-- the limit is 1, so the next call is a probe. Returns when the next call is allowed, if not now.
local function faulted(entry, retry_after_ms)
  local provider = redis.call('HGET', record_key(entry), 'provider')
  if not provider or provider == '' then return end
  local gate = read_gate(provider)
  gate.last_fault, gate.last_fault_at = R.fault.text, NOW
  local openings = gate.openings or 0
  if openings > 0 then
    -- The fault of a call that began before the breaker opened says nothing new.
    if claimed_at(provider, entry) > gate.opened_at and (gate.opens_at or 0) <= NOW then
      gate.faults = (gate.faults or 0) + 1
      open_breaker(provider, gate)
    end
  else
    local fresh = not gate.first_fault_at or NOW - gate.first_fault_at > gate_policy().window_ms
    if fresh then gate.first_fault_at = NOW end
    gate.faults = (fresh and 0 or gate.faults) + 1
    if gate.faults >= gate_policy().threshold then open_breaker(provider, gate) end
  end
  if retry_after_ms then close_gate(gate, retry_after_ms, gate.openings and 'breaker' or 'provider') end
  write_gate(provider, gate)
  return gate.opens_at
end
