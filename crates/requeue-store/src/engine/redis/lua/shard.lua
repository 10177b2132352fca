-- The keys of a shard, and what several scripts do with them.
local ROWS, BANDS = KEYS[1], { KEYS[2], KEYS[3], KEYS[4] }
local LEASES, AGAIN, PARKED, EPOCH, WAKE = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
-- Keys whose rows can't be read. Their rows stay as they are.
local ASIDE = KEYS[11]
-- No time that comes: as far as a double counts.
local NEVER = 9007199254740991

-- A whole number of microseconds. (NaN is not equal to itself, and infinity is more than `NEVER`.)
local function is_time(time)
  return time >= 0 and time <= NEVER and time % 1 == 0
end

-- The last epoch of the shard; 0 if there is none, or no valid one.
local function last_epoch()
  local epoch = tonumber(redis.call('GET', EPOCH) or 0)
  return epoch and is_time(epoch) and epoch or 0
end

-- The least time in a sorted set.
local function first(set)
  local found = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
  return tonumber(found[2] or NEVER)
end

-- When the next key is due.
local function next_due()
  return math.min(first(BANDS[1]), first(BANDS[2]), first(BANDS[3]))
end

-- How many more rows than places there are. It is not 0 if parts of the shard have been deleted by others,
-- as by an eviction: each row has a place in exactly one of these sets, and they have no other members. See
-- repair.lua.
local function unplaced()
  local placed = redis.call('ZCARD', LEASES) + redis.call('ZCARD', PARKED)
    + redis.call('ZCARD', ASIDE)
  for _, set in ipairs(BANDS) do
    placed = placed + redis.call('ZCARD', set)
  end
  return redis.call('HLEN', ROWS) - placed
end

local function is_damaged()
  return unplaced() ~= 0
end

-- How many keys are ready, waiting, in flight, dirty, parked and damaged. The last are those that were set
-- aside, and rows whose places were deleted by others: their states are known after the repair.
local function count(at)
  local ready, all = 0, 0
  for _, set in ipairs(BANDS) do
    ready = ready + redis.call('ZCOUNT', set, '-inf', at)
    all = all + redis.call('ZCARD', set)
  end
  return ready, all - ready, redis.call('ZCARD', LEASES), redis.call('ZCOUNT', AGAIN, '-inf', at),
    redis.call('ZCARD', PARKED), redis.call('ZCARD', ASIDE) + math.max(unplaced(), 0)
end

-- Wakes one who waits. One token is enough: whoever takes it and leaves keys behind puts another.
local function wake()
  if redis.call('LLEN', WAKE) == 0 then
    redis.call('LPUSH', WAKE, 1)
  end
end
