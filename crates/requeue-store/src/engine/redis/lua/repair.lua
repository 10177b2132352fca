-- Runs one step of the repair of a shard from which keys were removed, for example by an eviction. Restores
-- the missing places of rows, and drops places without a row. ARGV: the index of the Redis key to walk, and
-- the cursor of the last step. Answers the new cursor, the numbers of places restored and dropped, and the
-- keys that were set aside, each with the reason.
local which, cursor, at = tonumber(ARGV[1]), ARGV[2], now()
local walked = KEYS[which]
local restored, dropped, aside, is_due = 0, 0, {}, false

-- Returns the band of the set of a row, if it is one of BANDS.
local function band_of(row)
  return BAND_OF[place(row) or '']
end

-- Returns whether the key has a place in `set`, or is in TURNS instead. It must be in only one of the two.
local function is_placed(key, row, set)
  local is_there = redis.call('ZSCORE', set, key)
  if TURNS and band_of(row) then
    load_groups({ key })
    if redis.call('ZSCORE', TURNS, turn_of(band_of(row), group_of[key], row.at, key)) then
      if is_there then
        redis.call('ZREM', set, key)
      end
      return true
    end
  end
  return is_there
end

-- Returns whether a member of TURNS or IN_FLIGHT is right. First restores the group of its key if it was lost.
local function belongs_to_group(member)
  local group, key, _
  if walked == TURNS then
    _, group, _, key = parse_turn(member)
  else
    local middle = string.find(member, '\0', 1, true) or #member + 1
    group, key = string.sub(member, 1, middle - 1), string.sub(member, middle + 1)
  end
  local text = key and redis.call('HGET', ROWS, key)
  local row = text and unpacked(text)
  if not row or is_aside(key) then
    return false
  end
  local is_right
  group_of[key] = group
  if walked == TURNS then
    is_right = band_of(row) and member == turn_of(band_of(row), group, row.at, key)
  else
    is_right = place(row) == LEASES
  end
  local known = redis.call('HGET', GROUPS_OF, key)
  if is_right and not known then
    redis.call('HSET', GROUPS_OF, key, group)
    return true
  end
  return is_right and known == group
end

if walked == ROWS then
  local found = redis.call('HSCAN', ROWS, cursor, 'COUNT', 200)
  cursor = found[1]
  for i = 1, #found[2], 2 do
    local key = found[2][i]
    local row, why = unpacked(found[2][i + 1])
    if not row then
      if set_aside(key) then
        aside[#aside + 1] = key
        aside[#aside + 1] = why
      end
    else
      local set, score = place(row)
      if is_aside(key) then
        -- Another client has repaired the row since then.
        redis.call('ZREM', ASIDE, key)
      end
      if not is_placed(key, row, set) then
        redis.call('ZADD', set, text_of(score), key)
        restored = restored + 1
        is_due = is_due or set ~= PARKED and score <= at
      end
      if TURNS and set == LEASES then
        load_groups({ key })
        redis.call('ZADD', IN_FLIGHT, 0, flight_of(key))
      end
      if runs_again(row) then
        redis.call('ZADD', AGAIN, text_of(row.at), key)
      end
    end
  end
elseif walked == GROUPS_OF then
  local found = redis.call('HSCAN', GROUPS_OF, cursor, 'COUNT', 200)
  cursor = found[1]
  for i = 1, #found[2], 2 do
    if not redis.call('HGET', ROWS, found[2][i]) then
      redis.call('HDEL', GROUPS_OF, found[2][i])
    end
  end
elseif TURNS and (walked == TURNS or walked == IN_FLIGHT) then
  local found = redis.call('ZSCAN', walked, cursor, 'COUNT', 200)
  cursor = found[1]
  for i = 1, #found[2], 2 do
    if not belongs_to_group(found[2][i]) then
      redis.call('ZREM', walked, found[2][i])
      dropped = dropped + (walked == TURNS and 1 or 0)
    end
  end
else
  local found = redis.call('ZSCAN', walked, cursor, 'COUNT', 200)
  cursor = found[1]
  for i = 1, #found[2], 2 do
    local key = found[2][i]
    local text = redis.call('HGET', ROWS, key)
    local row = text and unpacked(text)
    local belongs
    if walked == ASIDE then
      belongs = text and not row
    else
      belongs = row and (place(row) == walked or walked == AGAIN and runs_again(row))
    end
    if not belongs then
      redis.call('ZREM', walked, key)
      dropped = dropped + (walked ~= AGAIN and 1 or 0)
    end
  end
end
if is_due then
  wake()
end
return { cursor, restored, dropped, aside }
