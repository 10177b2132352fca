-- Reads the failed runs of a key. ARGV: the key. Answers the time, the key's row, if any, and the failed runs.
local key = ARGV[1]
local found = redis.call('HMGET', ATTEMPTS, '0' .. key, '1' .. key, '2' .. key)
return { now(), redis.call('HGET', ROWS, key), found[1], found[2], found[3] }
