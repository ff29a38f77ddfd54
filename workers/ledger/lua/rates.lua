-- Shared by the scripts, after waiting.lua: tokens and requests that a provider allows in a time.
-- `minute:<provider>` exists only if tokens are limited, or its headers say what is left. It has:
--   <second>                       tokens that were counted in this second; 61 of them are kept
--   mean                           tokens of an answer: the mean of about the last eight
--   tokens_left, requests_left     what was left of an allowance, by the headers of an answer
--   tokens_at, requests_at         when that answer was stored
--   tokens_reset, requests_reset   how long after it the allowance is full again, in milliseconds
--   tokens_limit, requests_limit   the whole allowance, if the headers name it

local WINDOW = 60 -- seconds
-- The limit of a provider's headers counts for so long after the last answer that named it.
local TOLD_MS = 3600000

local function minute_key(provider) return S .. 'minute:' .. provider end

-- Returns what is known of a provider's rates, with `used`, the tokens of the last minute, and the
-- seconds that are no longer part of it. A second counts until all of it is a minute ago.
local function read_minute(provider)
  local read, flat = pcall(redis.call, 'HGETALL', minute_key(provider))
  local minute, over = { used = 0 }, {}
  if not read then
    redis.call('DEL', minute_key(provider)) -- of another type
    return minute, over
  end
  local first = math.floor(NOW / 1000) - WINDOW
  for i = 1, #flat, 2 do
    local second, value = tonumber(flat[i]), tonumber(flat[i + 1])
    if not second then
      minute[flat[i]] = value
    elseif second >= first then
      minute.used = minute.used + (value or 0)
    else
      over[#over + 1] = flat[i]
    end
  end
  return minute, over
end

-- Returns the tokens a minute: what is configured, and what the provider says if that is less. Its
-- word counts only if it also says what an answer takes.
local function token_limit(minute, configured)
  local told = minute.mean and NOW - (minute.tokens_at or 0) < TOLD_MS and minute.tokens_limit
  return told and math.min(told, configured or told) or configured
end

-- Returns what is left of an allowance now, nil if nothing limits. One that was named in full is
-- taken to fill up evenly, any other one all at once.
local function left_of(minute, what)
  local left, at, reset = minute[what .. '_left'], minute[what .. '_at'], minute[what .. '_reset']
  if not (left and at and reset) or NOW - at >= reset then return nil end
  local limit = minute[what .. '_limit']
  return limit and left + math.max(0, limit - left) * (NOW - at) / reset or left
end

-- Returns how many calls may start besides those that have a slot; infinity without a limit. Each of
-- them counts with the mean; before an answer told what it takes, one call has the whole minute.
-- An answer that takes more than the limit starts when nothing else counts.
local function rate_capacity(minute, configured, taken)
  local limit, free = token_limit(minute, configured), math.huge
  local function allow(amount, each) free = math.min(free, math.floor(amount / math.max(1, each)) - taken) end
  if limit then allow(limit - minute.used, math.min(minute.mean or limit, limit)) end
  local tokens, requests = left_of(minute, 'tokens'), left_of(minute, 'requests')
  if tokens and minute.mean then
    allow(tokens, math.min(minute.mean, minute.tokens_limit or minute.mean))
  end
  if requests then allow(requests, 1) end
  return free
end

local function note_told(fields, what, told)
  if not given(told) then return end
  local limit = given(told.limit) and stamp(told.limit) or ''
  for name, value in pairs({ left = stamp(told.left), at = stamp(NOW), reset = stamp(told.reset_ms), limit = limit }) do
    fields[#fields + 1] = what .. '_' .. name
    fields[#fields + 1] = value
  end
end

-- Counts the tokens of a call that has ended. `answer` has its `tokens`, the request's `token_cap` and
-- what its headers said, `rates`; nil if there is no answer. Unknown tokens count as the cap,
-- the mean, or a whole minute; without an answer as the mean: a call may have cost nothing.
local function count_call(provider, answer, configured)
  local told = answer and given(answer.rates) and answer.rates
  local key = minute_key(provider)
  local minute, over = read_minute(provider)
  local fields, tokens = {}, minute.mean
  if answer and given(answer.tokens) then
    tokens = answer.tokens
    fields = { 'mean', stamp(minute.mean and minute.mean + (tokens - minute.mean) / 8 or tokens) }
  elseif answer then
    tokens = given(answer.token_cap) and answer.token_cap or tokens or configured
  end
  if told then
    note_told(fields, 'tokens', told.tokens)
    note_told(fields, 'requests', told.requests)
  end
  if #over > 0 then redis.call('HDEL', key, unpack(over)) end
  if #fields > 0 then redis.call('HSET', key, unpack(fields)) end
  if tokens then redis.call('HINCRBY', key, int(math.floor(NOW / 1000)), int(math.ceil(tokens))) end
  expire(key, 604800000)
end

-- Counts a call whose answer will not come.
local function count_unanswered(entry)
  local kind = parse_entry(entry)
  local provider = (kind == 'a' or kind == 'c') and redis.call('HGET', record_key(entry), 'provider')
  if (provider or '') ~= '' then count_call(provider) end
end
