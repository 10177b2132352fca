-- Reads the failed runs of a key. The argument is the key. Answers with the time, the row of the key or false, and the
-- failed runs.
local key = ARGV[1]
local found = redis.call('HMGET', ATTEMPTS, '0' .. key, '1' .. key, '2' .. key)
return { now(), redis.call('HGET', ROWS, key), found[1], found[2], found[3] }
