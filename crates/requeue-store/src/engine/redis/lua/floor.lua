-- Raises the floor, which grows with each drop. All later queues have greater fencing tokens. The argument is the last
-- token of a queue.
local floor = tonumber(redis.call('GET', KEYS[1]) or 0)
redis.call('SET', KEYS[1], math.max(floor + 1, tonumber(ARGV[1])))
