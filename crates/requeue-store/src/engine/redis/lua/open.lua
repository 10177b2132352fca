-- The settings of a queue, which do not change, and whether it is new: no process has marked all its shards
-- since the record was made: 2 if it was made now, 1 if earlier. ARGV: whether its re-adds
-- are held, how many shards it has, whether its parked keys stay parked when they are added, and its
-- generation; nothing where none is to be made.
local is_made = ARGV[1] and redis.call('EXISTS', KEYS[1]) == 0
if is_made then
  redis.call('HSET', KEYS[1], 're_add', ARGV[1], 'shards', ARGV[2], 'parked_add', ARGV[3],
    'generation', ARGV[4], 'new', 1)
end
local said =
  redis.call('HMGET', KEYS[1], 're_add', 'shards', 'parked_add', 'generation', 'dropping', 'new')
return { said[1], said[2], is_made and 2 or said[6] or 0, said[3], said[4] or 0, said[5] or 0 }
