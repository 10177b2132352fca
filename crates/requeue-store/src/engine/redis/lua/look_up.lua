-- Looks up a key. ARGV: the key. Answers the time, the key's row, if any, and the fencing token of its cancelled run, if
-- any.
return { now(), redis.call('HGET', ROWS, ARGV[1]), redis.call('HGET', CANCELLED, ARGV[1]) }
