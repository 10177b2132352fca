-- The Redis keys of a shard, and functions that several scripts use.
local ROWS, BANDS = KEYS[1], { KEYS[2], KEYS[3], KEYS[4] }
local LEASES, AGAIN, PARKED, EPOCH, WAKE = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
-- The keys that were set aside, because their rows cannot be read. Scripts do not change these rows.
local ASIDE = KEYS[11]
-- A hash of the keys whose runs were cancelled, with the fencing tokens of these runs. If the token differs from the
-- token in the key's row, the entry has no effect.
local CANCELLED = KEYS[12]
-- Three values: whether the shard is paused, the time of its next schedule, and the rate of the queue. See `standing`.
-- A claim reads all three with one command.
local PAUSED = KEYS[13]
-- A hash of the failed runs: see `fail` and `engine/attempts.rs`. The field of a run is its slot, followed by the key.
local ATTEMPTS = KEYS[14]
-- The Redis keys that only a queue with groups has. Scripts run no commands for groups if the queue has no groups.
--
-- TURNS contains the ready keys, in the place of BANDS. They are ordered by band, group, due time and key: see
-- `turn_of`. When a waiting key becomes due, it stays in BANDS until a claim moves it. IN_FLIGHT is a hash of the
-- number of keys in flight of each group. The sum of all groups is under `DEFAULT`.
--
-- GROUP_SETTINGS contains the settings of each group: the limit, the weight, 1 if the group is paused, and the gate of
-- its rate if it has one. The settings of the queue are under `DEFAULT`. FREED contains groups that may now be able to
-- deliver a key, each after its band. A claim takes some of these groups, so that it need not search all groups. The
-- size of FREED is limited: `UNNAMED` stands for all groups that it does not contain.
local TURNS, IN_FLIGHT, GROUP_SETTINGS, FREED
if #KEYS >= 18 then
  TURNS, IN_FLIGHT, GROUP_SETTINGS, FREED = KEYS[15], KEYS[16], KEYS[17], KEYS[18]
end
-- The names of groups have no control characters, so no group has this name.
local DEFAULT = '\1'
-- No band has this number.
local UNNAMED = '0'
-- The largest integer up to which a double is exact. No clock reaches this time.
local NEVER = 9007199254740991

-- Returns true if `time` is a whole number of microseconds. (NaN fails every comparison, and infinity exceeds `NEVER`.)
local function is_time(time)
  return time >= 0 and time <= NEVER and time % 1 == 0
end

-- Parses PAUSED. The text has the generation of the queue, after a `-` if the shard is not paused. The time of the next
-- schedule, or a `-`, follows, and then the gate of the queue's rate if it has one. A text of another generation is
-- ignored. Returns whether the shard is paused, the time or nil, and the gate as text or nil.
local function parse_standing(text, generation)
  if not text or text == '' then
    return false
  end
  local word, time, rate = string.match(text, '^(%S+) ?(%S*) ?(.*)$')
  local is_paused = word == generation
  if not is_paused and word ~= '-' .. generation then
    return false
  end
  return is_paused, tonumber(time), rate ~= '' and rate or nil
end

-- Returns the rate of a gate, or nil if there is no gate. If the rate was removed, the gate is a dash.
local function rate_of(gate)
  return string.match(gate or '', '^(%d+ %d+ %d+) %d+$')
end

local function text_of_standing(generation, is_paused, time, rate)
  local word = (is_paused and '' or '-') .. generation
  if rate then
    return string.format('%s %s %s', word, time and string.format('%.0f', time) or '-', rate)
  end
  return time and string.format('%s %.0f', word, time) or is_paused and word or ''
end

local function standing()
  return parse_standing(redis.call('GET', PAUSED), generation)
end

local function keep_standing(is_paused, time, rate)
  redis.call('SET', PAUSED, text_of_standing(generation, is_paused, time, rate))
end

-- Returns the last fencing token of the shard, or 0 if it is missing or invalid.
local function last_epoch()
  local epoch = tonumber(redis.call('GET', EPOCH) or 0)
  return epoch and is_time(epoch) and epoch or 0
end

-- Returns the earliest time in a sorted set, or `NEVER` if the set is empty.
local function first(set)
  local found = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
  return tonumber(found[2] or NEVER)
end

-- Returns the due time of the next key, or `NEVER` if there is none.
local function next_due()
  return math.min(first(BANDS[1]), first(BANDS[2]), first(BANDS[3]))
end

-- Returns the number of rows minus the number of places. Each row has a place in exactly one of these sets, and the
-- sets have no other members. If the result is not 0, other clients have deleted parts of the shard, or the server has
-- evicted them. See repair.lua.
local function unplaced()
  local placed = redis.call('ZCARD', LEASES) + redis.call('ZCARD', PARKED)
    + redis.call('ZCARD', ASIDE)
  for _, set in ipairs(BANDS) do
    placed = placed + redis.call('ZCARD', set)
  end
  if TURNS then
    placed = placed + redis.call('ZCARD', TURNS)
  end
  return redis.call('HLEN', ROWS) - placed
end

-- Returns true if the sum of the numbers of keys in flight is wrong. Scripts add differences to the sum, so a wrong sum
-- stays wrong until the repair. If the sum is missing, LEASES may also be lost.
local function is_miscounted()
  local sum = redis.call('HGET', IN_FLIGHT, DEFAULT)
  return redis.call('ZCARD', LEASES) ~= tonumber(sum or 0) or not sum and unplaced() ~= 0
end

local function is_damaged()
  return unplaced() ~= 0 or TURNS and is_miscounted()
end

-- Returns the numbers of keys that are ready, waiting, in flight, dirty, parked and damaged. Two kinds of keys count as
-- damaged: keys that were set aside, and keys that have no place. The state of a key without a place is unknown until
-- the repair.
local function count(at)
  local ready, all = 0, 0
  for _, set in ipairs(BANDS) do
    ready = ready + redis.call('ZCOUNT', set, '-inf', at)
    all = all + redis.call('ZCARD', set)
  end
  if TURNS then
    local turns = redis.call('ZCARD', TURNS)
    ready, all = ready + turns, all + turns
  end
  return ready, all - ready, redis.call('ZCARD', LEASES), redis.call('ZCOUNT', AGAIN, '-inf', at),
    redis.call('ZCARD', PARKED), redis.call('ZCARD', ASIDE) + math.max(unplaced(), 0)
end

-- Wakes one waiting process. One token in the list is enough: if a process takes the token, but not all ready keys, it
-- adds another token.
local function wake()
  if redis.call('LLEN', WAKE) == 0 then
    redis.call('LPUSH', WAKE, 1)
  end
end

-- Makes the sum of the keys in flight wrong on purpose. Claims then deliver no key until a repair has counted the keys.
local function distrust_counts()
  redis.call('HSET', IN_FLIGHT, DEFAULT, 'inf')
  wake()
end

-- The numbers of the bands as texts, because Lua converts numbers slowly.
local DIGITS = { '1', '2', '3' }
local parse_turn, start_of_key, turns_of_group, next_turn
if TURNS then
  -- Returns the band, the group, the due time and the key of a member of TURNS.
  function parse_turn(member)
    -- Another client may have written a member without a separator.
    local middle = string.find(member, '\0', 1, true) or #member + 1
    return tonumber(string.sub(member, 1, 1)), string.sub(member, 2, middle - 1),
      tonumber(string.sub(member, middle + 1, middle + 16)), string.sub(member, middle + 18)
  end

  -- Returns the position at which the key begins in a member of TURNS of this group.
  function start_of_key(group)
    return #group + 20
  end

  -- Returns the first `count` members of TURNS for a band and a group. If `after` is given, the result begins after the
  -- member `after`.
  function turns_of_group(band, group, count, after)
    local start = DIGITS[band] .. group
    return redis.call('ZRANGEBYLEX', TURNS, after and '(' .. after or '[' .. start .. '\0', '(' .. start .. '\1',
      'LIMIT', '0', count)
  end

  -- Returns the first member of TURNS for a band. If `after` is given, the search begins after the group `after`. If
  -- `before` is given, the search ends after the group `before`.
  function next_turn(band, after, before)
    local digit = DIGITS[band]
    local from = '[' .. digit .. (after and after .. '\1' or '')
    local to = '(' .. digit .. (before and before .. '\1' or '\255')
    return redis.call('ZRANGEBYLEX', TURNS, from, to, 'LIMIT', '0', '1')[1]
  end
end
