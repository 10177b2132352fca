-- Looks up a key. The argument is the key. Answers with the time, the row of the key or false, and the fencing token of
-- its cancelled run or false.
return { now(), redis.call('HGET', ROWS, ARGV[1]), redis.call('HGET', CANCELLED, ARGV[1]) }
