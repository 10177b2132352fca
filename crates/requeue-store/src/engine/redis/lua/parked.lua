-- Lists parked keys in order. ARGV: the start, in the format of ZRANGEBYLEX, and the maximum number.
-- Answers the time, and for each key the key, its row, if any, and its group, if the queue has groups.
local answer = { now() }
for i, key in ipairs(redis.call('ZRANGEBYLEX', PARKED, ARGV[1], '+', 'LIMIT', 0, ARGV[2])) do
  local n = #answer
  answer[n + 1], answer[n + 2] = key, redis.call('HGET', ROWS, key)
  if TURNS then
    answer[n + 3] = redis.call('HGET', GROUPS_OF, key)
  end
end
return answer
