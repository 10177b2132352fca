-- Restores the groups of keys that have a row and no group. ARGV: each key and its group.
local restored = {}
for i = 1, #ARGV, 2 do
  local key = ARGV[i]
  if redis.call('HGET', ROWS, key) and not redis.call('HGET', GROUPS_OF, key) then
    restored[#restored + 1] = key
    restored[#restored + 1] = ARGV[i + 1]
  end
end
if #restored > 0 then
  redis.call('HSET', GROUPS_OF, unpack(restored))
end
