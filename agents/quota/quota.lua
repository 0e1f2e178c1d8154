-- Quota of one tenant: check, then reserve, in one step. Described in agents/quota/store.py.
--
-- KEYS  bucket (hash), active and jobs (sorted sets of response ids by deadline), reservation (hash), two hashes of what was
--       refused, two of what was cancelled; all under one hash tag
-- ARGV  operation, epoch, now_ms ('' = Redis' own clock), requests/minute, tokens/minute, concurrent responses, concurrent
--       jobs, response id, keep_ms, how many refusals are kept, then the operation's own arguments, and at last the
--       server's run_id
--
-- Numbers are doubles, exact below 2^53. Limits of 10^9 requests and 10^12 tokens per minute keep every product that
-- is stored below that.

local bucket, reservation = KEYS[1], KEYS[4]
local active = {responses = KEYS[2], jobs = KEYS[3]}
local operation, epoch = ARGV[1], ARGV[2]
local requests_per_minute, tokens_per_minute = tonumber(ARGV[4]), tonumber(ARGV[5])
local concurrency = {responses = tonumber(ARGV[6]), jobs = tonumber(ARGV[7])}
local response_id, keep_ms, refusals_kept = ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])

local MINUTE_MS = 60000
local HOUR_MS = 3600000
local DAY_MS = 86400000
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
if at_ms > now_ms + MINUTE_MS then
  -- The clock was set back: what it was ahead by must not pass again before anything is gained.
  at_ms = now_ms
  redis.call('HSET', bucket, 'at_ms', string.format('%.0f', at_ms))
end
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

local function live_at_least(key, ms)
  if redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, ms)
  end
end

-- `kind` of work: 'responses' or 'jobs', each with a concurrency of its own.
local function hold(kind, count, deadline_ms)
  tokens = tokens - count
  redis.call('ZADD', active[kind], string.format('%.0f', deadline_ms), response_id)
  -- What a lost settlement left behind, long past its deadline; its reservation has expired too.
  redis.call('ZREMRANGEBYSCORE', active[kind], '-inf', string.format('%.0f', now_ms - keep_ms))
  live_at_least(active[kind], lifetime_ms(deadline_ms))
end

local function is_over()
  redis.call('ZREM', active.responses, response_id)
  redis.call('ZREM', active.jobs, response_id)
end

-- What was refused, by the part of the id that is unique, in two hashes by turns: when the one that takes is full, the other
-- is dropped and takes. So the last half of what is kept is known at least, and never more than all of it. What was cancelled
-- stands apart, and more of it: whole batches are, their lines may wait for a day, and one that is forgotten would run.
local unique = string.match(response_id, '[^_]*$')
local refused = {hashes = {KEYS[5], KEYS[6]}, kept = refusals_kept, longest_ms = keep_ms, taking = 'refused_in'}
local cancelled = {
  hashes = {KEYS[7], KEYS[8]}, kept = 20 * refusals_kept, longest_ms = DAY_MS + REDELIVERY_MS, taking = 'cancelled_in'
}

local function refusal_known()
  for _, memory in ipairs({refused, cancelled}) do
    local code = redis.call('HGET', memory.hashes[1], unique) or redis.call('HGET', memory.hashes[2], unique)
    if code then return code end
  end
  return false
end

-- For as long as an earlier delivery's refusal can be contradicted: until the request could not be admitted any more.
local function remember_refusal(code, deadline_ms)
  local memory = code == 'cancelled' and cancelled or refused
  local taking = tonumber(redis.call('HGET', bucket, memory.taking)) or 1
  if redis.call('HLEN', memory.hashes[taking]) >= memory.kept / 2 then
    taking = 3 - taking
    redis.call('UNLINK', memory.hashes[taking])
    redis.call('HSET', bucket, memory.taking, taking)
  end
  redis.call('HSET', memory.hashes[taking], unique, code)
  live_at_least(memory.hashes[taking], math.min(math.max(deadline_ms - now_ms, 0) + REDELIVERY_MS, memory.longest_ms))
end

local stored = redis.call('HMGET', reservation, 'state', 'tokens', 'decision', 'refusal')
local state, held, decision = stored[1], tonumber(stored[2]) or 0, stored[3]
local refused_as = not state and refusal_known()
if state == 'refused' then
  -- Stored by the release before, each with its words.
  refused_as = cjson.decode(stored[4]).code
end

local function create(new_state, deadline_ms, ...)
  redis.call('HSET', reservation, 'state', new_state, ...)
  redis.call('PEXPIRE', reservation, lifetime_ms(deadline_ms))
end

local function create_reserved(kind, count, deadline_ms, ...)
  hold(kind, count, deadline_ms)
  create('reserved', deadline_ms, 'tokens', string.format('%.0f', count), ...)
  save_bucket()
end

local function return_held()
  if state ~= 'reserved' then return end
  tokens = tokens + held
  is_over()
  save_bucket()
end

local function store_refusal(code, deadline_ms)
  redis.call('DEL', reservation)
  remember_refusal(code, deadline_ms)
end

-- The outcome that an earlier call stored for this id.
local function outcome()
  if refused_as and string.find(refused_as, '^rate_limited') then
    return {'refused', refused_as, cjson.encode({code = refused_as, retry_after_ms = 1000, limits = limits()})}
  end
  if refused_as then return {'refused', refused_as} end
  if state == 'refunded' then return {'refunded'} end
  if state == 'settled' then return {'finished'} end
  if decision then return {'decided', decision, held} end
  return {'reserved', held}
end

-- Until there is room for one more request beside those that are kept for others; 0 if there is.
local function request_wait_ms(kept)
  local most = (requests_per_minute - (kept or 0)) * MINUTE_MS
  return math.max(math.ceil((backlog + MINUTE_MS - most) / requests_per_minute), 0)
end

local function told(code, wait_ms)
  return cjson.encode({code = code, retry_after_ms = wait_ms, limits = limits()})
end

local function refuse_for_now(code, wait_ms, deadline_ms)
  store_refusal(code, deadline_ms)
  save_bucket()
  return {'refused', code, told(code, wait_ms)}
end

if operation == 'look' then
  if state or refused_as then return outcome() end
  local wait_ms = request_wait_ms()
  if wait_ms > 0 then return refuse_for_now('rate_limited_requests', wait_ms, tonumber(ARGV[11])) end
  return {'room'}
end

-- `reserve` takes from all limits or from none, and sets the route if it is given one. `decide` asks no limit: where the
-- reservation was lost between two stages, the decision must not be.
if operation == 'reserve' or operation == 'decide' then
  local count, deadline_ms, kind = tonumber(ARGV[11]), tonumber(ARGV[12]), ARGV[13]
  local wanted, may_wait = ARGV[14], ARGV[15] == '1'
  if state == 'reserved' and not decision and wanted ~= '' then
    redis.call('HSET', reservation, 'decision', wanted)
    return {'routed', held}
  end
  if state or refused_as then return outcome() end
  if operation == 'reserve' then
    -- What may wait leaves half of a minute to what may not: no chat is refused for its tenant's jobs.
    local kept_requests, kept_tokens = 0, 0
    if may_wait then
      kept_requests = math.floor(requests_per_minute / 2)
      -- Of what one large job leaves, a third may be in use by chats: it must not wait until nobody asks anything.
      local kept_of_large = math.floor((tokens_per_minute - count) * 2 / 3)
      kept_tokens = math.max(math.min(math.floor(tokens_per_minute / 2), kept_of_large), 0)
    end
    local code, wait_ms = nil, request_wait_ms(kept_requests)
    if wait_ms > 0 then
      code = 'rate_limited_requests'
    elseif count > tokens - kept_tokens then
      code = 'rate_limited_tokens'
      wait_ms = gain_ms(count + kept_tokens - tokens, tokens_per_minute)
    elseif redis.call('ZCARD', active[kind]) >= concurrency[kind] then
      code = 'rate_limited_concurrency'
      wait_ms = 1000
    end
    if code and may_wait then return {'wait', told(code, wait_ms)} end
    if code then return refuse_for_now(code, wait_ms, deadline_ms) end
    backlog = backlog + MINUTE_MS
  end
  if wanted == '' then
    create_reserved(kind, count, deadline_ms)
    return {'reserved', count, cjson.encode(limits())}
  end
  create_reserved(kind, count, deadline_ms, 'decision', wanted)
  return {'routed', count, cjson.encode(limits())}
end

-- With each of its moves it goes to one place, whoever asks again: '' is none.
if operation == 'place' then
  if state ~= 'reserved' or not decision then return {'finished'} end
  local name = 'place:' .. ARGV[11]
  redis.call('HSETNX', reservation, name, ARGV[12])
  return {'placed', redis.call('HGET', reservation, name)}
end

if operation == 'refuse' then
  local code, deadline_ms, spends_request = ARGV[11], tonumber(ARGV[12]), ARGV[13] == '1'
  if refused_as or state == 'settled' or state == 'reserved' and decision then return outcome() end
  -- A refund is no outcome: nothing is held, and the response may still have to end, where it was opened if it was.
  if decision then return {'decided', decision, 0} end
  return_held()
  if spends_request and not state and request_wait_ms() == 0 then
    backlog = backlog + MINUTE_MS
    save_bucket()
  end
  store_refusal(code, deadline_ms)
  return {'refused', code}
end

if operation == 'settle' then
  local choice, used = ARGV[11], tonumber(ARGV[12])
  if refused_as then return {'refused'} end
  if not state then return {'unknown'} end
  if redis.call('HSETNX', reservation, 'choice_' .. choice, used) == 0 then return {'duplicate'} end
  if state == 'reserved' then
    tokens = tokens + held
    is_over()
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
    is_over()
    return {'unchanged'}
  end
  return_held()
  redis.call('HSET', reservation, 'state', 'refunded')
  redis.call('PEXPIRE', reservation, keep_ms)
  return {'refunded'}
end

if operation == 'restore' then
  local new_state, count, deadline_ms, kind, wanted = ARGV[11], tonumber(ARGV[12]), tonumber(ARGV[13]), ARGV[14], ARGV[15]
  if state == 'reserved' and new_state == 'settled' then
    -- The settlement was lost, and its usage may be read by nobody again. One that comes still debits.
    return_held()
    redis.call('DEL', reservation)
    create('settled', deadline_ms)
    return {'restored'}
  end
  if refused_as or decision or state == 'settled' then return {'unchanged'} end
  -- What is there, but neither decided nor ended, may be what was written before a crash; the log knows what came then.
  if new_state == 'refused' then
    return_held()
    store_refusal(wanted, deadline_ms)
  elseif state then
    redis.call('HSET', reservation, 'decision', wanted)
  elseif new_state == 'reserved' then
    create_reserved(kind, count, deadline_ms, 'decision', wanted)
  else
    create('settled', deadline_ms)
  end
  return {'restored'}
end

return redis.error_reply('unknown operation ' .. operation)
