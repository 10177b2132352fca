-- What is said of a queue, once and for all. ARGV: whether its early adds are held, its shards; nothing
-- where none is to be made.
if ARGV[1] and redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'early_add', ARGV[1], 'shards', ARGV[2])
end
return redis.call('HMGET', KEYS[1], 'early_add', 'shards')
