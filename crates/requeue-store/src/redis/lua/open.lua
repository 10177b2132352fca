-- The settings of a queue, which do not change, and whether it was made now. ARGV: whether its early adds
-- are held, how many shards it has, whether its parked keys stay parked when they are added; nothing where
-- none is to be made.
local is_new = redis.call('EXISTS', KEYS[1]) == 0
if ARGV[1] and is_new then
  redis.call('HSET', KEYS[1], 'early_add', ARGV[1], 'shards', ARGV[2], 'parked_add', ARGV[3])
end
local said = redis.call('HMGET', KEYS[1], 'early_add', 'shards', 'parked_add')
return { said[1], said[2], is_new and 1 or 0, said[3] }
