-- Parked keys in order. ARGV: from where, as ZRANGEBYLEX has it, and how many at most. The time, and of
-- each the key and what is kept of it, if anything.
local answer = { now() }
for i, key in ipairs(redis.call('ZRANGEBYLEX', PARKED, ARGV[1], '+', 'LIMIT', 0, ARGV[2])) do
  answer[2 * i], answer[2 * i + 1] = key, redis.call('HGET', ROWS, key)
end
return answer
