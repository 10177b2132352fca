-- Restores the groups of keys that have a row and no group. ARGV: each key and its group. A key that became ready
-- without a group moves to its group at the same time: otherwise a claim could exceed the limit of that group.
local restored = {}
for i = 1, #ARGV, 2 do
  local key, group = ARGV[i], ARGV[i + 1]
  local text = redis.call('HGET', ROWS, key)
  if text and not redis.call('HGET', GROUPS_OF, key) then
    restored[#restored + 1] = key
    restored[#restored + 1] = group
    local row = unpacked(text)
    local band = row and BAND_OF[place(row)]
    if band and redis.call('ZREM', TURNS, turn_of(band, '', row.at, key)) == 1 then
      redis.call('ZADD', TURNS, 0, turn_of(band, group, row.at, key))
    end
  end
end
if #restored > 0 then
  redis.call('HSET', GROUPS_OF, unpack(restored))
end
