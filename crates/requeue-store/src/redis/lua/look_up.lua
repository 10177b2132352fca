-- ARGV: the key. The time, and what is kept of it, if anything.
local found = redis.call('HGET', ROWS, ARGV[1])
return { now(), found and cmsgpack.unpack(found) }
