-- The keys of a shard, and helpers for several scripts.
local ROWS, BANDS = KEYS[1], { KEYS[2], KEYS[3], KEYS[4] }
local LEASES, AGAIN, PARKED, EPOCH, WAKE = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
-- Keys whose rows cannot be read. Their rows are not changed.
local ASIDE = KEYS[11]
-- A hash of the keys whose runs were cancelled, with the fencing tokens of these runs. An entry with another
-- token than the key's row has no meaning.
local CANCELLED = KEYS[12]
-- The generation of the queue that is paused, or empty. Another generation has no meaning.
local PAUSED = KEYS[13]
-- A time that is never reached: the largest exact integer of a double.
local NEVER = 9007199254740991

-- Returns whether this is a whole number of microseconds. (NaN does not equal itself, and infinity exceeds
-- `NEVER`.)
local function is_time(time)
  return time >= 0 and time <= NEVER and time % 1 == 0
end

-- Returns the last fencing token of the shard, or 0 if there is none or it is invalid.
local function last_epoch()
  local epoch = tonumber(redis.call('GET', EPOCH) or 0)
  return epoch and is_time(epoch) and epoch or 0
end

-- Returns the earliest time in a sorted set.
local function first(set)
  local found = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
  return tonumber(found[2] or NEVER)
end

-- Returns the due time of the next key.
local function next_due()
  return math.min(first(BANDS[1]), first(BANDS[2]), first(BANDS[3]))
end

-- Returns the number of rows minus the number of places. It is not 0 if other clients have deleted parts of
-- the shard, or the server has evicted them: each row has a place in exactly one of these sets, and the
-- sets have no other members. See repair.lua.
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

-- Returns the numbers of keys that are ready, waiting, in flight, dirty, parked and damaged. Damaged keys
-- are those that were set aside, and those that have lost their places, whose states are unknown until the
-- repair.
local function count(at)
  local ready, all = 0, 0
  for _, set in ipairs(BANDS) do
    ready = ready + redis.call('ZCOUNT', set, '-inf', at)
    all = all + redis.call('ZCARD', set)
  end
  return ready, all - ready, redis.call('ZCARD', LEASES), redis.call('ZCOUNT', AGAIN, '-inf', at),
    redis.call('ZCARD', PARKED), redis.call('ZCARD', ASIDE) + math.max(unplaced(), 0)
end

-- Wakes one waiting process. One token is enough: a process that takes it and leaves ready keys behind adds
-- another.
local function wake()
  if redis.call('LLEN', WAKE) == 0 then
    redis.call('LPUSH', WAKE, 1)
  end
end
