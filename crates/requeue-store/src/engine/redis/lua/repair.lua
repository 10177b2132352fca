-- Runs one step of the repair of a shard from which keys were removed, for example by an eviction. Restores
-- the missing places of rows, and drops places without a row. ARGV: the index of the Redis key to walk, and
-- the cursor of the last step. Answers the new cursor, the numbers of places restored and dropped, and the
-- keys that were set aside, each with the reason.
local which, cursor, at = tonumber(ARGV[1]), ARGV[2], now()
local walked = KEYS[which]
local restored, dropped, aside, is_due = 0, 0, {}, false

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
      if not redis.call('ZSCORE', set, key) then
        redis.call('ZADD', set, text_of(score), key)
        restored = restored + 1
        is_due = is_due or set ~= PARKED and score <= at
      end
      if runs_again(row) then
        redis.call('ZADD', AGAIN, text_of(row.at), key)
      end
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
