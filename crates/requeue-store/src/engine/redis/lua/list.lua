-- Adds a queue to the list of queues. The argument is its name.
if not redis.call('HGET', KEYS[1], ARGV[1]) then
  redis.call('HSET', KEYS[1], ARGV[1], '')
end
