-- One step of the repair of a shard of which others have removed some keys, as by an eviction. Rows get
-- back the places that they have lost, and places without a row are dropped. ARGV: which key is walked,
-- and where the last step ended. Where this one ends, how many were restored and dropped, and
-- the keys that were set aside, each with the reason.
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
        -- Somebody has mended it since then.
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
