-- ARGV: the key. The time, and what is kept of it, if anything.
return { now(), redis.call('HGET', ROWS, ARGV[1]) }
