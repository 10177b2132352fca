-- Looks up a key. ARGV: the key. Answers the time, and the key's row, if any.
return { now(), redis.call('HGET', ROWS, ARGV[1]) }
