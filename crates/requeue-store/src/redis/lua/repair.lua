-- One step of the repair of a shard of which others have removed some keys, as by an eviction. Rows get
-- back the places that they have lost, and places without a row are dropped. ARGV: which key is walked,
-- and where the last step ended. Where this one ends, and how many were restored and dropped.
local which, cursor, at = tonumber(ARGV[1]), ARGV[2], now()
local walked = KEYS[which]
local restored, dropped, is_due = 0, 0, false

if walked == ROWS then
  local found = redis.call('HSCAN', ROWS, cursor, 'COUNT', 200)
  cursor = found[1]
  for i = 1, #found[2], 2 do
    local key = found[2][i]
    local row = read(key, found[2][i + 1])
    if not row.was_in then
      -- A row without a state: nothing is to be done for its key.
      redis.call('HDEL', ROWS, key)
      dropped = dropped + 1
    elseif not redis.call('ZSCORE', row.was_in, key) then
      redis.call('ZADD', row.was_in, text_of(row.was_at), key)
      restored = restored + 1
      is_due = is_due or row.was_in ~= PARKED and row.was_at <= at
    end
    if row.was_again then
      redis.call('ZADD', AGAIN, text_of(row.was_again), key)
    end
  end
else
  local found = redis.call('ZSCAN', walked, cursor, 'COUNT', 200)
  cursor = found[1]
  for i = 1, #found[2], 2 do
    local key = found[2][i]
    local text = redis.call('HGET', ROWS, key)
    local row = text and read(key, text)
    local belongs = row and (row.was_in == walked or walked == AGAIN and row.was_again)
    if not belongs then
      redis.call('ZREM', walked, key)
      dropped = dropped + (walked ~= AGAIN and 1 or 0)
    end
  end
end
if is_due then
  wake()
end
return { cursor, restored, dropped }
