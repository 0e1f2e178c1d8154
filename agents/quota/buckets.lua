-- What a minute has room for: the tenant's bucket, and those of a key and a model beside it.

-- In the slot of the tenant's keys.
local function beside_key(name)
  return string.sub(KEYS[1], 1, -#'bucket' - 1) .. name
end

-- A full bucket gains nothing, not even a fraction.
local function cap(bucket)
  if bucket.tokens >= bucket.per_minute then
    bucket.tokens, bucket.carry = bucket.per_minute, 0
  end
end

-- A bucket is what one limit's name has used: the tenant's, and beside it those of a key and a model, which may lack
-- `requests` or `per_minute`. `backlog`: GCRA's (theoretical arrival time - now), in 1/60000 of a request, so that both drain
-- and cost are integers. `tokens`: what is left, negative when in debt; `carry`: the fraction of a token gained, in 1/60000.
local function filled(bucket, at_ms, backlog, tokens, carry)
  local elapsed_ms = math.max(math.min(now_ms - at_ms, HOUR_MS), 0)
  if bucket.requests then
    bucket.backlog = math.max(backlog - elapsed_ms * bucket.requests, 0)
  end
  if bucket.per_minute then
    carry = carry + elapsed_ms * (bucket.per_minute % MINUTE_MS)
    bucket.tokens = tokens + elapsed_ms * math.floor(bucket.per_minute / MINUTE_MS) + math.floor(carry / MINUTE_MS)
    bucket.carry = carry % MINUTE_MS
    cap(bucket)
  end
  return bucket
end

local function tenant_bucket()
  local bucket = {
    key = KEYS[1], name = 'tenant', requests = tonumber(ARGV[4]), per_minute = tonumber(ARGV[5]),
    most = {responses = tonumber(ARGV[6]), jobs = tonumber(ARGV[7])}, active = {responses = KEYS[2], jobs = KEYS[3]},
  }
  local was = redis.call('HMGET', bucket.key, 'at_ms', 'backlog', 'tokens', 'carry')
  local at_ms = tonumber(was[1]) or now_ms
  if at_ms > now_ms + MINUTE_MS then
    -- The clock was set back: what it was ahead by must not pass again before anything is gained.
    at_ms = now_ms
    redis.call('HSET', bucket.key, 'at_ms', string.format('%.0f', at_ms))
  end
  now_ms = math.max(now_ms, at_ms)
  return filled(bucket, at_ms, tonumber(was[2]) or 0, tonumber(was[3]) or bucket.per_minute, tonumber(was[4]) or 0)
end

local function limit_of(asked, stored)
  local limit = tonumber(asked or stored) or 0
  if limit > 0 then return limit end
  return nil
end

-- `asked`: the limits as they are; without them the rates are those of the last time that they were asked.
local function further_bucket(name, asked)
  local key = beside_key('limit:' .. name)
  local was = redis.call('HMGET', key, 'at_ms', 'backlog', 'tokens', 'carry', 'requests', 'per_minute')
  local bucket = {
    key = key, name = name, requests = limit_of(asked[2], was[5]), per_minute = limit_of(asked[3], was[6]),
    most = {responses = limit_of(asked[4]), jobs = limit_of(asked[5])},
    active = {responses = key .. ':responses', jobs = key .. ':jobs'},
  }
  local tokens = tonumber(was[3]) or bucket.per_minute
  return filled(bucket, tonumber(was[1]) or now_ms, tonumber(was[2]) or 0, tokens, tonumber(was[4]) or 0)
end

local stored = redis.call('HMGET', reservation, 'state', 'tokens', 'decision', 'refusal', 'limited_by')
local tenant = tenant_bucket()
local buckets = {tenant}
if stored[5] then
  -- Those that it was taken from.
  for _, name in ipairs(cjson.decode(stored[5])) do
    buckets[#buckets + 1] = further_bucket(name, {})
  end
elseif beside.limits and not stored[1] then
  for _, asked in ipairs(beside.limits) do
    buckets[#buckets + 1] = further_bucket(asked[1], asked)
  end
end

local function save_buckets()
  for _, bucket in ipairs(buckets) do
    local fields = {'at_ms', string.format('%.0f', now_ms)}
    local function set(name, number)
      fields[#fields + 1] = name
      fields[#fields + 1] = string.format('%.0f', number)
    end
    if bucket.requests then set('backlog', bucket.backlog) end
    if bucket.per_minute then
      cap(bucket)
      set('tokens', bucket.tokens)
      set('carry', bucket.carry)
    end
    if bucket ~= tenant then
      set('requests', bucket.requests or 0)
      set('per_minute', bucket.per_minute or 0)
    end
    redis.call('HSET', bucket.key, unpack(fields))
    redis.call('PEXPIRE', bucket.key, HOUR_MS)
  end
end

local function gain(tokens)
  for _, bucket in ipairs(buckets) do
    if bucket.per_minute then bucket.tokens = bucket.tokens + tokens end
  end
end

local function count_request()
  for _, bucket in ipairs(buckets) do
    if bucket.requests then bucket.backlog = bucket.backlog + MINUTE_MS end
  end
end

-- Milliseconds until `amount` more has been gained.
local function gain_ms(amount, per_minute)
  if amount <= 0 then return 0 end
  return math.floor(amount / per_minute) * MINUTE_MS + math.ceil((amount % per_minute) * MINUTE_MS / per_minute)
end

local function requests_left(bucket)
  return math.max(bucket.requests - math.ceil(bucket.backlog / MINUTE_MS), 0)
end

local function tokens_left(bucket)
  return math.max(math.min(bucket.tokens, bucket.per_minute), 0)
end

-- What clients are told: of the bucket that refuses, else of requests and of tokens that which has the least left.
local function limits(refusing)
  local first, second = tenant, tenant
  for _, bucket in ipairs(buckets) do
    if bucket.requests and (bucket == refusing or first ~= refusing and requests_left(bucket) < requests_left(first)) then
      first = bucket
    end
    if bucket.per_minute and (bucket == refusing or second ~= refusing and tokens_left(bucket) < tokens_left(second)) then
      second = bucket
    end
  end
  return {
    requests_limit = first.requests,
    requests_remaining = requests_left(first),
    requests_reset_ms = math.ceil(first.backlog / first.requests),
    tokens_limit = second.per_minute,
    tokens_remaining = tokens_left(second),
    tokens_reset_ms = gain_ms(second.per_minute - second.tokens, second.per_minute),
  }
end
