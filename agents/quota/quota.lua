-- The operations. What stands before them: `beginning.lua`, `buckets.lua` and `money.lua`, in this order.

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
  gain(-count)
  for _, bucket in ipairs(buckets) do
    local set = bucket.active[kind]
    if bucket == tenant or bucket.most[kind] then
      redis.call('ZADD', set, string.format('%.0f', deadline_ms), response_id)
      if bucket ~= tenant or not money_is_held() then
        -- What a lost settlement left behind, long past its deadline; its reservation has expired too. What holds money
        -- is found here by who gives that back.
        redis.call('ZREMRANGEBYSCORE', set, '-inf', string.format('%.0f', now_ms - keep_ms))
      end
      live_at_least(set, lifetime_ms(deadline_ms))
    end
  end
end

local function is_over()
  for _, bucket in ipairs(buckets) do
    redis.call('ZREM', bucket.active.responses, response_id)
    redis.call('ZREM', bucket.active.jobs, response_id)
  end
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
  local taking = tonumber(redis.call('HGET', KEYS[1], memory.taking)) or 1
  if redis.call('HLEN', memory.hashes[taking]) >= memory.kept / 2 then
    taking = 3 - taking
    redis.call('UNLINK', memory.hashes[taking])
    redis.call('HSET', KEYS[1], memory.taking, taking)
  end
  redis.call('HSET', memory.hashes[taking], unique, code)
  live_at_least(memory.hashes[taking], math.min(math.max(deadline_ms - now_ms, 0) + REDELIVERY_MS, memory.longest_ms))
end

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

-- Those that the reservation is taken from besides the tenant's, for who ends it: '' where there are none.
local function limited_by()
  local names = {}
  for index = 2, #buckets do names[index - 1] = buckets[index].name end
  return #names > 0 and cjson.encode(names) or ''
end

local function create_reserved(kind, count, deadline_ms, ...)
  hold(kind, count, deadline_ms)
  hold_money()
  create('reserved', deadline_ms, 'tokens', string.format('%.0f', count), ...)
  if #buckets > 1 then redis.call('HSET', reservation, 'limited_by', limited_by()) end
  save_buckets()
end

local function return_held()
  if state ~= 'reserved' then return end
  gain(held)
  is_over()
  release_money()
  save_buckets()
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
local function request_wait_ms(bucket, kept)
  if not bucket.requests then return 0 end
  local most = (bucket.requests - (kept or 0)) * MINUTE_MS
  return math.max(math.ceil((bucket.backlog + MINUTE_MS - most) / bucket.requests), 0)
end

local function longest_request_wait()
  local wait_ms, slowest = 0, tenant
  for _, bucket in ipairs(buckets) do
    local bucket_ms = request_wait_ms(bucket)
    if bucket_ms > wait_ms then wait_ms, slowest = bucket_ms, bucket end
  end
  return wait_ms, slowest
end

local function told(code, wait_ms, bucket)
  return cjson.encode({code = code, retry_after_ms = wait_ms, limits = limits(bucket), limited = bucket.name})
end

local function refuse_for_now(code, wait_ms, bucket, deadline_ms)
  store_refusal(code, deadline_ms)
  save_buckets()
  return {'refused', code, told(code, wait_ms, bucket)}
end

-- Why a bucket has no room, and for how long; nil where it has.
local function lacks(bucket, kind, count, may_wait)
  -- What may wait leaves half of a minute to what may not: no chat is refused for its tenant's jobs.
  local kept_requests = may_wait and bucket.requests and math.floor(bucket.requests / 2) or 0
  local wait_ms = request_wait_ms(bucket, kept_requests)
  if wait_ms > 0 then return 'rate_limited_requests', wait_ms end
  if bucket.per_minute then
    local kept = 0
    if may_wait then
      -- Of what one large job leaves, a third may be in use by chats: it must not wait until nobody asks anything.
      local kept_of_large = math.floor((bucket.per_minute - count) * 2 / 3)
      kept = math.max(math.min(math.floor(bucket.per_minute / 2), kept_of_large), 0)
    end
    if count > bucket.tokens - kept then
      return 'rate_limited_tokens', gain_ms(count + kept - bucket.tokens, bucket.per_minute)
    end
  end
  if bucket.most[kind] and redis.call('ZCARD', bucket.active[kind]) >= bucket.most[kind] then
    return 'rate_limited_concurrency', 1000
  end
end

if operation == 'look' then
  if state or refused_as then return outcome() end
  local wait_ms, bucket = longest_request_wait()
  if wait_ms > 0 then return refuse_for_now('rate_limited_requests', wait_ms, bucket, tonumber(ARGV[12])) end
  return {'room'}
end

-- `reserve` takes from all limits or from none, and sets the route if it is given one. `decide` asks no limit: where the
-- reservation was lost between two stages, the decision must not be.
if operation == 'reserve' or operation == 'decide' then
  local count, deadline_ms, kind = tonumber(ARGV[12]), tonumber(ARGV[13]), ARGV[14]
  local wanted, may_wait = ARGV[15], ARGV[16] == '1'
  if state == 'reserved' and not decision and wanted ~= '' then
    redis.call('HSET', reservation, 'decision', wanted)
    return {'routed', held}
  end
  if state or refused_as then return outcome() end
  if operation == 'reserve' then
    -- Of several that have no room the one that is waited for longest is told.
    local code, wait_ms, binding
    for _, bucket in ipairs(buckets) do
      local why, for_ms = lacks(bucket, kind, count, may_wait)
      if why and (not code or for_ms > wait_ms) then code, wait_ms, binding = why, for_ms, bucket end
    end
    if code and may_wait then return {'wait', told(code, wait_ms, binding)} end
    if code then return refuse_for_now(code, wait_ms, binding, deadline_ms) end
    local account, may_be_free, is_spent = budget_missing()
    if account then
      local why = cjson.encode({
        code = 'budget_exhausted', limits = limits(), limited = account, held = may_be_free, spent = is_spent,
        month = beside.money.month,
      })
      if may_wait and may_be_free then return {'wait', why} end
      store_refusal('budget_exhausted', deadline_ms)
      return {'refused', 'budget_exhausted', why}
    end
    count_request()
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
  local name = 'place:' .. ARGV[12]
  redis.call('HSETNX', reservation, name, ARGV[13])
  return {'placed', redis.call('HGET', reservation, name)}
end

if operation == 'refuse' then
  local code, deadline_ms, spends_request = ARGV[12], tonumber(ARGV[13]), ARGV[14] == '1'
  if refused_as or state == 'settled' or state == 'reserved' and decision then return outcome() end
  -- A refund is no outcome: nothing is held, and the response may still have to end, where it was opened if it was.
  if decision then return {'decided', decision, 0} end
  return_held()
  if spends_request and not state and longest_request_wait() == 0 then
    count_request()
    save_buckets()
  end
  store_refusal(code, deadline_ms)
  return {'refused', code}
end

if operation == 'settle' then
  local choice, used = ARGV[12], tonumber(ARGV[13])
  if refused_as then return {'refused'} end
  if not state then
    -- Whatever was held of it is known no more; what it has cost is counted once all the same.
    if not beside.money then return {'unknown'} end
    redis.call('HSET', reservation, 'state', 'settled')
    redis.call('PEXPIRE', reservation, keep_ms)
  end
  if redis.call('HSETNX', reservation, 'choice_' .. choice, used) == 0 then return {'duplicate'} end
  release_choice(beside.money and beside.money.nano or '0')
  spend_money()
  if not state then return {'unknown'} end
  if state == 'reserved' then
    gain(held)
    is_over()
  end
  if state ~= 'settled' then
    -- Kept for hours and asked for seldom: made anew, as Redis never turns a hash back into its compact form.
    local left_ms = redis.call('PTTL', reservation)
    redis.call('DEL', reservation)
    redis.call('HSET', reservation, 'state', 'settled', 'choice_' .. choice, used)
    if #buckets > 1 then redis.call('HSET', reservation, 'limited_by', limited_by()) end
    redis.call('PEXPIRE', reservation, left_ms)
  end
  gain(-used)
  save_buckets()
  return {'settled', state}
end

if operation == 'refund' then
  -- What was routed may still come to be charged, however late, and so may the choices that are left of one of which some
  -- are: money stays held until that is told, or can be no more.
  if not decision and state ~= 'settled' or ARGV[12] == '1' then release_money() end
  if state ~= 'reserved' then
    is_over()
    return {'unchanged'}
  end
  gain(held)
  is_over()
  save_buckets()
  redis.call('HSET', reservation, 'state', 'refunded')
  redis.call('PEXPIRE', reservation, keep_ms)
  return {'refunded'}
end

if operation == 'restore' then
  local new_state, count, deadline_ms, kind, wanted = ARGV[12], tonumber(ARGV[13]), tonumber(ARGV[14]), ARGV[15], ARGV[16]
  -- What has ended comes with its money where it may be charged still. All else is counted as spent, and holds nothing more.
  local function hold_or_release()
    if beside.money then hold_money() else release_money() end
  end
  if state == 'reserved' and new_state == 'settled' then
    -- The settlement was lost, and its usage may be read by nobody again. One that comes still debits.
    gain(held)
    is_over()
    save_buckets()
    redis.call('DEL', reservation)
    create('settled', deadline_ms)
    hold_or_release()
    return {'restored'}
  end
  if state == 'settled' and new_state == 'settled' then
    -- One that was charged, by a process that was faster, has its choices beside its state: it holds nothing again.
    if not beside.money or redis.call('HLEN', reservation) == 1 then hold_or_release() end
    return {'unchanged'}
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
    hold_or_release()
  end
  return {'restored'}
end

-- Reads of money come through here as well: what is asked of a store that has lost its memory is not known to be nothing.
if operation == 'money' then
  local hashes = {}
  for index = 12, #ARGV - 1 do hashes[#hashes + 1] = redis.call('HGETALL', beside_key(ARGV[index])) end
  return {'money', hashes}
end

local function note_told(sums, alert)
  redis.call('HSET', sums, 'told:' .. alert, '1')
  redis.call('PEXPIRE', sums, MONEY_KEPT_MS)
end

if operation == 'note_told' then
  note_told(beside_key(ARGV[12]), ARGV[13])
  return {'noted'}
end

-- What one partition of `usage` had told of a month up to an offset of a log, of a tenant. What is there is less only where the end
-- of it was lost: every sum of a partition grows together with all others of it.
if operation == 'restore_spent' then
  local sums = beside_key('money:' .. ARGV[12] .. ':' .. ARGV[13])
  local partition, offset, nano = ARGV[14], ARGV[15], cjson.decode(ARGV[16])
  local told = sums .. ':' .. partition
  for _, alert in ipairs(cjson.decode(ARGV[17])) do note_told(sums, alert) end
  if tonumber(redis.call('HGET', told, 'tenant') or 0) >= tonumber(nano.tenant or 0) then return {'unchanged'} end
  for account, counted in pairs(nano) do
    local before = redis.call('HGET', told, account) or '0'
    redis.call('HINCRBY', sums, 'spent:' .. account, minus(before))
    redis.call('HINCRBY', sums, 'spent:' .. account, counted)
    redis.call('HSET', told, account, counted)
  end
  redis.call('HSET', sums, 'restored:' .. partition .. ':' .. ARGV[18], offset)
  counted_up_to(sums, partition, ARGV[18], tonumber(offset))
  redis.call('PEXPIRE', sums, MONEY_KEPT_MS)
  redis.call('PEXPIRE', told, MONEY_KEPT_MS)
  return {'restored'}
end

return redis.error_reply('unknown operation ' .. operation)
