-- Lists parked keys in order. ARGV: the start, in the format of ZRANGEBYLEX, and the maximum number.
-- Answers the time, and for each key the key and its row, if any.
local answer = { now() }
for i, key in ipairs(redis.call('ZRANGEBYLEX', PARKED, ARGV[1], '+', 'LIMIT', 0, ARGV[2])) do
  local n = #answer
  answer[n + 1], answer[n + 2] = key, redis.call('HGET', ROWS, key)
end
return answer
