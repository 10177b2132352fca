-- Runs one step of the repair of a shard from which keys were removed, for example by an eviction. Restores the places
-- of rows that have none, and drops places that have no row. The arguments are the index of the Redis key to walk, and
-- the cursor of the last step. Answers with the new cursor, the numbers of restored and of dropped places, and the keys
-- that were set aside, each with the reason.
local which, cursor, at = tonumber(ARGV[1]), ARGV[2], now()
local walked = KEYS[which]
local restored, dropped, aside, is_due = 0, 0, {}, false

-- Returns the band of a row if the place of the row is in one of BANDS, and nil otherwise.
local function band_of(row)
  return BAND_OF[place(row) or '']
end

-- Returns whether the key has a place in `set`, or in TURNS instead. The key must be in only one of the two sets.
local function is_placed(key, row, set)
  local is_there = redis.call('ZSCORE', set, key)
  if TURNS and band_of(row)
    and redis.call('ZSCORE', TURNS, turn_of(band_of(row), group_of[key], row.at, key))
  then
    if is_there then
      redis.call('ZREM', set, key)
    end
    return true
  end
  return is_there
end

-- Counts the keys in flight of each group. This must be a single step, because other scripts change these numbers.
local function count_in_flight()
  local numbers, scanned = { [DEFAULT] = 0 }, '0'
  repeat
    local found = redis.call('HSCAN', IN_FLIGHT, scanned, 'COUNT', 1000)
    scanned = found[1]
    for i = 1, #found[2], 2 do
      redis.call('HDEL', IN_FLIGHT, found[2][i])
    end
  until scanned == '0'
  -- If other places were lost since the walk, LEASES may not contain all keys in flight.
  if unplaced() ~= 0 then
    return distrust_counts()
  end
  for start = 0, redis.call('ZCARD', LEASES) - 1, 1000 do
    local keys = redis.call('ZRANGE', LEASES, start, start + 999)
    for i, text in ipairs(find(keys)) do
      -- If a key has no row, the next repair removes the key.
      for _, group in ipairs({ DEFAULT, text and group_of[keys[i]] or nil }) do
        numbers[group] = (numbers[group] or 0) + 1
      end
    end
  end
  for group, number in pairs(numbers) do
    redis.call('HSET', IN_FLIGHT, group, number)
  end
end

if walked == ROWS then
  local found = redis.call('HSCAN', ROWS, cursor, 'COUNT', 200)
  cursor = found[1]
  local keys = {}
  for i = 1, #found[2], 2 do
    keys[#keys + 1] = found[2][i]
  end
  for i, text in ipairs(#keys > 0 and find(keys) or {}) do
    local key = keys[i]
    local row, why = unpacked(text)
    if not row then
      if set_aside(key) then
        aside[#aside + 1] = key
        aside[#aside + 1] = why
      end
    else
      local set, score = place(row)
      if is_aside(key) then
        -- Another client has repaired the row after the key was set aside.
        redis.call('ZREM', ASIDE, key)
      end
      if not is_placed(key, row, set) then
        redis.call('ZADD', set, text_of(score), key)
        restored = restored + 1
        is_due = is_due or set ~= PARKED and score <= at
      end
      if runs_again(row) then
        redis.call('ZADD', AGAIN, text_of(row.at), key)
      end
    end
  end
elseif walked == IN_FLIGHT then
  count_in_flight()
  cursor, is_due = '0', true
else
  local found = redis.call('ZSCAN', walked, cursor, 'COUNT', 200)
  cursor = found[1]
  for i = 1, #found[2], 2 do
    local key, _ = found[2][i]
    if walked == TURNS then
      _, _, _, key = parse_turn(found[2][i])
    end
    local text = find({ key })[1]
    local row = text and unpacked(text)
    local belongs
    if walked == ASIDE then
      belongs = text and not row
    elseif walked == TURNS then
      belongs = row and band_of(row) and not is_aside(key)
        and found[2][i] == turn_of(band_of(row), group_of[key], row.at, key)
    else
      belongs = row and (place(row) == walked or walked == AGAIN and runs_again(row))
    end
    if not belongs then
      redis.call('ZREM', walked, found[2][i])
      dropped = dropped + (walked ~= AGAIN and 1 or 0)
    end
  end
end
if is_due then
  wake()
end
return { cursor, restored, dropped, aside }
