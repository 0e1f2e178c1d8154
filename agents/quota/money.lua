-- Money, of the month and currency of `money`: `spent:` and `held:` of the tenant, a project and a key. What is held of one
-- response stands in `holds` until all of it is settled, or it is refused, or somebody says that it never will be: no time
-- ends it.
local function accounts_of(money)
  return {'tenant', 'project:' .. money.project, 'key:' .. money.key}
end

local function sums_of(money)
  return beside_key('money:' .. money.month .. ':' .. money.currency)
end

local function add_money(prefix, money, nano)
  local sums = sums_of(money)
  for _, account in ipairs(accounts_of(money)) do
    redis.call('HINCRBY', sums, prefix .. account, nano)
  end
  redis.call('PEXPIRE', sums, MONEY_KEPT_MS)
end

-- Redis takes no `-0`.
local function minus(nano)
  return nano == '0' and nano or '-' .. nano
end

local holds = beside_key('holds')

local function money_is_held()
  return redis.call('EXISTS', holds) == 1
end

local function hold_money()
  local money = beside.money
  if not money or redis.call('HSETNX', holds, response_id, cjson.encode(money)) == 0 then return end
  redis.call('PEXPIRE', holds, MONEY_KEPT_MS)
  add_money('held:', money, money.nano)
end

local function money_held()
  local held = redis.call('HGET', holds, response_id)
  return held and cjson.decode(held)
end

local function release_money()
  local money = money_held()
  if not money then return end
  redis.call('HDEL', holds, response_id)
  add_money('held:', money, minus(money.nano))
end

-- With each choice what it was charged is held no more, and with the last one nothing is: meanwhile nobody else gets it.
local function release_choice(nano)
  local money = money_held()
  if not money then return end
  if money.choices <= 1 then return release_money() end
  local released = string.format('%.0f', math.min(tonumber(nano), tonumber(money.nano)))
  add_money('held:', money, minus(released))
  money.choices = money.choices - 1
  money.nano = string.format('%.0f', tonumber(money.nano) - tonumber(released))
  redis.call('HSET', holds, response_id, cjson.encode(money))
end

-- The budget that has the least left, where that is less than what is to be held: its name, whether all of it is free once
-- what runs is settled, and whether all of the budget is spent.
local function budget_missing()
  local money = beside.money
  if not money then return nil end
  local missing, least, may_be_free, is_spent
  for _, account in ipairs(accounts_of(money)) do
    local most = money.most[account]
    if most then
      local sums = redis.call('HMGET', sums_of(money), 'spent:' .. account, 'held:' .. account)
      local unspent = tonumber(most) - (tonumber(sums[1]) or 0)
      local left = unspent - (tonumber(sums[2]) or 0)
      if tonumber(money.nano) > left and (not least or left < least) then
        missing, least, may_be_free, is_spent = account, left, tonumber(money.nano) <= unspent, unspent <= 0
      end
    end
  end
  return missing, may_be_free, is_spent
end

-- Offsets are those of one log: one that was begun anew has its own.
local function counted_up_to(sums, partition, log, offset)
  local field = 'counted:' .. partition .. ':' .. log
  if offset > (tonumber(redis.call('HGET', sums, field)) or 0) then
    redis.call('HSET', sums, field, string.format('%.0f', offset))
  end
end

-- What a choice was charged, once: also counted by the partition of `usage` that tells it, whose sums are what a store that
-- has lost its memory is given back (`restore_spent`). What those have counted already is not counted again.
local function spend_money()
  local money = beside.money
  if not money or tonumber(money.nano) == 0 then return end
  local sums = sums_of(money)
  local restored = tonumber(redis.call('HGET', sums, 'restored:' .. money.partition .. ':' .. money.log)) or 0
  if tonumber(money.offset) < restored then return end
  add_money('spent:', money, money.nano)
  counted_up_to(sums, money.partition, money.log, tonumber(money.offset) + 1)
  local told = sums .. ':' .. money.partition
  for _, account in ipairs(accounts_of(money)) do
    redis.call('HINCRBY', told, account, money.nano)
  end
  redis.call('PEXPIRE', told, MONEY_KEPT_MS)
end
