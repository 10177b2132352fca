-- Raises the floor. All later queues have greater fencing tokens. The floor increases with each drop. ARGV:
-- the last token of a queue.
local floor = tonumber(redis.call('GET', KEYS[1]) or 0)
redis.call('SET', KEYS[1], math.max(floor + 1, tonumber(ARGV[1])))
