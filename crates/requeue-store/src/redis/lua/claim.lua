-- ARGV: how many at most, how many of them oldest first, the lease, whether early adds are held, and
-- how those fail whose leases have run out. Answers how long until the next may be ready, -1 if that is
-- not known or never; and of each key: itself, epoch, adds, reasons, priority, failures, how long it was ready.
local at, max, oldest = now(), tonumber(ARGV[1]), tonumber(ARGV[2])
local lease_until, hold = after(at, tonumber(ARGV[3])), ARGV[4] == '1'

-- Those that there are rows of. Where somebody has removed the rows, what is left of them goes, too.
local function known(keys)
  load(keys)
  local found = {}
  for _, key in ipairs(keys) do
    if rows[key] then
      found[#found + 1] = key
    else
      for _, set in ipairs({ LEASES, AGAIN, BANDS[1], BANDS[2], BANDS[3] }) do
        redis.call('ZREM', set, key)
      end
    end
  end
  return found
end

local expired = redis.call('ZRANGEBYSCORE', LEASES, '-inf', at, 'LIMIT', 0, 256)
if #expired > 0 then
  local failing = parsed(ARGV[5], ENDS)
  expired = known(expired)
  for n, key in ipairs(expired) do
    local row = rows[key]
    local how = setmetatable({
      adds = row.run_adds, reasons = row.run_reasons, priority = row.run_priority,
      -- What fails at once is not to come back at once: see `Failing::nth`.
      share = 1 - (1 - failing.share) * n % 1,
    }, { __index = failing })
    finish(row, how, 'the lease ran out', hold, at)
  end
  keep(expired, at)
end

local ready, heads = {}, { 1, 1, 1 }
for band, set in ipairs(BANDS) do
  ready[band] = redis.call('ZRANGEBYSCORE', set, '-inf', at, 'WITHSCORES', 'LIMIT', 0, max)
end
local keys = {}
for n = 1, max do
  local best
  for band = 3, 1, -1 do
    local score = tonumber(ready[band][heads[band] + 1])
    if score and (not best or n <= oldest and score < tonumber(ready[best][heads[best] + 1])) then
      best = band
    end
  end
  if not best then
    break
  end
  keys[n] = ready[best][heads[best]]
  heads[best] = heads[best] + 2
end

local answer = { -1 }
keys = #keys > 0 and known(keys) or keys
if #keys > 0 then
  -- They rise by themselves, and by the clock where the last one was lost.
  local epoch = tonumber(redis.call('GET', EPOCH) or 0)
  for _, key in ipairs(keys) do
    local row = rows[key]
    epoch = math.max(epoch + 1, at)
    row.epoch, row.lease_until, row.run_since = epoch, lease_until, at
    row.run_adds, row.run_reasons = math.max(row.adds, 1), row.reasons
    row.run_priority = row.priority
    row.at, row.adds, row.reasons = 0, 0, 0
    if row.not_before > 0 then
      row.not_before = 0
    end
    local n = #answer
    answer[n + 1], answer[n + 2], answer[n + 3] = key, epoch, row.run_adds
    answer[n + 4], answer[n + 5], answer[n + 6] = row.run_reasons, row.run_priority, row.failures
    answer[n + 7] = math.max(at - row.since, 0)
  end
  redis.call('SET', EPOCH, epoch)
  keep(keys, at)
end
local due = next_due()
if #keys == max then
  if due <= at then
    -- For another one.
    wake()
  end
else
  local next = math.min(due, first(LEASES))
  if next < NEVER then
    answer[1] = math.max(next - at, 0)
  end
end
return answer
