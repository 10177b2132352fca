-- Lists parked keys in sorted order. The arguments are the start, in the format of ZRANGEBYLEX, and the maximum number
-- of keys. Answers with the time, and each key with its row or false.
local answer = { now() }
for i, key in ipairs(redis.call('ZRANGEBYLEX', PARKED, ARGV[1], '+', 'LIMIT', 0, ARGV[2])) do
  local n = #answer
  answer[n + 1], answer[n + 2] = key, redis.call('HGET', ROWS, key)
end
return answer
