-- Quota of one tenant: check, then reserve, in one step. Described in agents/quota/store.py.
--
-- KEYS  bucket (hash), active and jobs (sorted sets of response ids by deadline), reservation (hash), two hashes of what was
--       refused, two of what was cancelled; all under one hash tag
-- ARGV  operation, epoch, now_ms ('' = Redis' own clock), requests/minute, tokens/minute, concurrent responses, concurrent
--       jobs, response id, keep_ms, how many refusals are kept, what holds beside the tenant's limits (JSON, or ''), then the
--       operation's own arguments, and at last the server's run_id
--
-- What holds beside (`agents.quota.beside`) is `limits`, of a key or a model: [name, requests, tokens, responses, jobs], of
-- which 0 is no limit; and `money`, what is to be held of budgets, or was spent. Its keys are found by name, in the slot of
-- KEYS: of a response that is settled the reservation alone knows which these are.
--
-- Numbers are doubles, exact below 2^53. Limits of 10^9 requests and 10^12 tokens per minute keep every product that
-- is stored below that, and so do budgets of 4 * 10^15 nano-currency a month; sums of money are added up by HINCRBY, in 64
-- bits.

local reservation = KEYS[4]
local operation, epoch = ARGV[1], ARGV[2]
local response_id, keep_ms, refusals_kept = ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])
local beside = ARGV[11] ~= '' and cjson.decode(ARGV[11]) or {}

local MINUTE_MS = 60000
local HOUR_MS = 3600000
local DAY_MS = 86400000
local MONEY_KEPT_MS = 40 * DAY_MS
local REDELIVERY_MS = 900000

-- An epoch holds for one run of the server: one that crashed may have lost the last second, and nothing would show it.
local run_id = ARGV[#ARGV]
if string.sub(epoch, 1, #run_id) ~= run_id then
  return {'epoch'}
end

if operation == 'adopt' or operation == 'restore' or operation == 'restore_spent' then
  -- In the same step as what is restored: another process may rebuild at the same time, under an epoch of its own.
  redis.call('HSET', KEYS[1], 'epoch', epoch)
  redis.call('PEXPIRE', KEYS[1], HOUR_MS)
  if operation == 'adopt' then return {'adopted'} end
end

-- A tenant whose marker is gone was never seen, or Redis has lost its memory; the caller finds out which.
if redis.call('HGET', KEYS[1], 'epoch') ~= epoch then
  return {'epoch'}
end

local now_ms = tonumber(ARGV[3])
if now_ms == nil then
  local time = redis.call('TIME')
  now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
