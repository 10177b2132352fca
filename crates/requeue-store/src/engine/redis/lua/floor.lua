-- Raises the number that all epochs of later queues exceed; it is greater after each drop. ARGV: the last
-- epoch of a queue.
local floor = tonumber(redis.call('GET', KEYS[1]) or 0)
redis.call('SET', KEYS[1], math.max(floor + 1, tonumber(ARGV[1])))
