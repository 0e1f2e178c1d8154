-- Quota of one tenant: check, then reserve, in one step. Described in agents/quota/store.py.
--
-- KEYS  bucket (hash), active (sorted set of response ids by deadline), reservation (hash); all under one hash tag
-- ARGV  operation, epoch, now_ms ('' = Redis' own clock), requests/minute, tokens/minute, concurrency, response id, keep_ms,
--       then the operation's own arguments, and at last the server's run_id
--
-- Numbers are doubles, exact below 2^53. Limits of 10^9 requests and 10^12 tokens per minute keep every product that
-- is stored below that.

local bucket, active, reservation = KEYS[1], KEYS[2], KEYS[3]
local operation, epoch = ARGV[1], ARGV[2]
local requests_per_minute, tokens_per_minute, concurrency = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local response_id, keep_ms = ARGV[7], tonumber(ARGV[8])

local MINUTE_MS = 60000
local HOUR_MS = 3600000
local REDELIVERY_MS = 900000

-- An epoch holds for one run of the server: one that crashed may have lost the last second, and nothing would show it.
local run_id = ARGV[#ARGV]
if string.sub(epoch, 1, #run_id) ~= run_id then
  return {'epoch'}
end

if operation == 'adopt' or operation == 'restore' then
  -- In the same step as what is restored: another process may rebuild at the same time, under an epoch of its own.
  redis.call('HSET', bucket, 'epoch', epoch)
  redis.call('PEXPIRE', bucket, HOUR_MS)
  if operation == 'adopt' then return {'adopted'} end
end

-- A tenant whose marker is gone was never seen, or Redis has lost its memory; the caller finds out which.
if redis.call('HGET', bucket, 'epoch') ~= epoch then
  return {'epoch'}
end

local now_ms = tonumber(ARGV[3])
if now_ms == nil then
  local time = redis.call('TIME')
  now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- `backlog`: GCRA's (theoretical arrival time - now), in 1/60000 of a request, so that both drain and cost are integers.
-- `tokens`: what is left, negative when in debt; `carry`: the fraction of a token gained, in 1/60000.
local fields = redis.call('HMGET', bucket, 'at_ms', 'backlog', 'tokens', 'carry')
local at_ms = tonumber(fields[1]) or now_ms
local backlog = tonumber(fields[2]) or 0
local tokens = tonumber(fields[3]) or tokens_per_minute
local carry = tonumber(fields[4]) or 0
now_ms = math.max(now_ms, at_ms)
local elapsed_ms = math.min(now_ms - at_ms, HOUR_MS)
backlog = math.max(backlog - elapsed_ms * requests_per_minute, 0)
carry = carry + elapsed_ms * (tokens_per_minute % MINUTE_MS)
tokens = tokens + elapsed_ms * math.floor(tokens_per_minute / MINUTE_MS) + math.floor(carry / MINUTE_MS)
carry = carry % MINUTE_MS

-- A full bucket gains nothing, not even a fraction.
local function cap()
  if tokens >= tokens_per_minute then
    tokens, carry = tokens_per_minute, 0
  end
end
cap()

local function save_bucket()
  cap()
  redis.call('HSET', bucket, 'at_ms', string.format('%.0f', now_ms), 'backlog', string.format('%.0f', backlog),
    'tokens', string.format('%.0f', tokens), 'carry', string.format('%.0f', carry))
  redis.call('PEXPIRE', bucket, HOUR_MS)
end

-- Milliseconds until `amount` more has been gained.
local function gain_ms(amount, per_minute)
  if amount <= 0 then return 0 end
  return math.floor(amount / per_minute) * MINUTE_MS + math.ceil((amount % per_minute) * MINUTE_MS / per_minute)
end

local function limits()
  local requests_used = math.ceil(backlog / MINUTE_MS)
  return {
    requests_limit = requests_per_minute,
    requests_remaining = math.max(requests_per_minute - requests_used, 0),
    requests_reset_ms = math.ceil(backlog / requests_per_minute),
    tokens_limit = tokens_per_minute,
    tokens_remaining = math.max(math.min(tokens, tokens_per_minute), 0),
    tokens_reset_ms = gain_ms(tokens_per_minute - tokens, tokens_per_minute),
  }
end

local function lifetime_ms(deadline_ms)
  return math.max(deadline_ms - now_ms, 0) + keep_ms
end

local function hold(count, deadline_ms)
  tokens = tokens - count
  redis.call('ZADD', active, string.format('%.0f', deadline_ms), response_id)
  -- What a lost settlement left behind, long past its deadline; its reservation has expired too.
  redis.call('ZREMRANGEBYSCORE', active, '-inf', string.format('%.0f', now_ms - keep_ms))
  if redis.call('PTTL', active) < lifetime_ms(deadline_ms) then
    redis.call('PEXPIRE', active, lifetime_ms(deadline_ms))
  end
end

local stored = redis.call('HMGET', reservation, 'state', 'tokens', 'decision', 'refusal')
local state, held, decision, refusal = stored[1], tonumber(stored[2]) or 0, stored[3], stored[4]

local function create(new_state, deadline_ms, ...)
  redis.call('HSET', reservation, 'state', new_state, ...)
  redis.call('PEXPIRE', reservation, lifetime_ms(deadline_ms))
end

local function create_reserved(count, deadline_ms, ...)
  hold(count, deadline_ms)
  create('reserved', deadline_ms, 'tokens', string.format('%.0f', count), ...)
  save_bucket()
end

local function return_held()
  if state ~= 'reserved' then return end
  tokens = tokens + held
  redis.call('ZREM', active, response_id)
  save_bucket()
end

-- For as long as an earlier delivery's refusal can be contradicted: until the request could not be admitted any more.
local function store_refusal(text, deadline_ms)
  redis.call('DEL', reservation)
  redis.call('HSET', reservation, 'state', 'refused', 'refusal', text)
  redis.call('PEXPIRE', reservation, math.min(math.max(deadline_ms - now_ms, 0) + REDELIVERY_MS, keep_ms))
end

-- The outcome that an earlier call stored for this id.
local function outcome()
  if state == 'refused' then return {'refused', refusal} end
  if state == 'refunded' then return {'refunded'} end
  if state == 'settled' then return {'finished'} end
  if decision then return {'decided', decision, held} end
  return {'reserved', held}
end

if operation == 'reserve' then
  local count, deadline_ms = tonumber(ARGV[9]), tonumber(ARGV[10])
  if state then return outcome() end
  local code, wait_ms
  if backlog + MINUTE_MS > requests_per_minute * MINUTE_MS then
    code = 'rate_limited_requests'
    wait_ms = math.ceil((backlog + MINUTE_MS - requests_per_minute * MINUTE_MS) / requests_per_minute)
  elseif count > tokens then
    code = 'rate_limited_tokens'
    wait_ms = gain_ms(count - tokens, tokens_per_minute)
  elseif redis.call('ZCARD', active) >= concurrency then
    code = 'rate_limited_concurrency'
    wait_ms = 1000
  end
  if code then
    refusal = cjson.encode({code = code, retry_after_ms = wait_ms, limits = limits()})
    store_refusal(refusal, deadline_ms)
    save_bucket()
    return {'refused', refusal}
  end
  backlog = backlog + MINUTE_MS
  create_reserved(count, deadline_ms)
  return {'reserved', count}
end

if operation == 'decide' then
  local count, deadline_ms, wanted = tonumber(ARGV[9]), tonumber(ARGV[10]), ARGV[11]
  if not state then
    -- The reservation was lost between two stages; the decision must not be.
    create_reserved(count, deadline_ms, 'decision', wanted)
    return {'decided', wanted, count}
  end
  if state ~= 'reserved' or decision then return outcome() end
  redis.call('HSET', reservation, 'decision', wanted)
  return {'decided', wanted, held}
end

if operation == 'refuse' then
  local wanted, deadline_ms = ARGV[9], tonumber(ARGV[10])
  if state == 'refused' or state == 'settled' or state == 'reserved' and decision then return outcome() end
  -- A refund is no outcome: nothing is held, and the response may still have to end, where it was opened if it was.
  if decision then return {'decided', decision, 0} end
  return_held()
  store_refusal(wanted, deadline_ms)
  return {'refused', wanted}
end

if operation == 'settle' then
  local choice, used = ARGV[9], tonumber(ARGV[10])
  if not state then return {'unknown'} end
  if state == 'refused' then return {'refused', refusal} end
  if redis.call('HSETNX', reservation, 'choice_' .. choice, used) == 0 then return {'duplicate'} end
  if state == 'reserved' then
    tokens = tokens + held
    redis.call('ZREM', active, response_id)
  end
  if state ~= 'settled' then
    -- Kept for hours and asked for seldom: made anew, as Redis never turns a hash back into its compact form.
    local left_ms = redis.call('PTTL', reservation)
    redis.call('DEL', reservation)
    redis.call('HSET', reservation, 'state', 'settled', 'choice_' .. choice, used)
    redis.call('PEXPIRE', reservation, left_ms)
  end
  tokens = tokens - used
  save_bucket()
  return {'settled', state}
end

if operation == 'refund' then
  if state ~= 'reserved' then
    redis.call('ZREM', active, response_id)
    return {'unchanged'}
  end
  return_held()
  redis.call('HSET', reservation, 'state', 'refunded')
  redis.call('PEXPIRE', reservation, keep_ms)
  return {'refunded'}
end

if operation == 'restore' then
  local new_state, count, deadline_ms, wanted = ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11]), ARGV[12]
  if state and (decision or state == 'refused' or state == 'settled') then return {'unchanged'} end
  -- What is there, but neither decided nor ended, may be what was written before a crash; the log knows what came then.
  if new_state == 'refused' then
    return_held()
    store_refusal(wanted, deadline_ms)
  elseif state then
    redis.call('HSET', reservation, 'decision', wanted)
  elseif new_state == 'reserved' then
    create_reserved(count, deadline_ms, 'decision', wanted)
  else
    create('settled', deadline_ms)
  end
  return {'restored'}
end

return redis.error_reply('unknown operation ' .. operation)
