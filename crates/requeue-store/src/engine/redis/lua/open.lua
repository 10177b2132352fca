-- Reads the settings of a queue, which do not change. Creates the queue if it does not exist and there are arguments.
-- The arguments are 1 if re-adds are held, the number of shards, 1 if an add leaves a parked key parked, the
-- generation, and the rate or an empty text. If the queue has groups, the rule that assigns keys to groups follows, and
-- their limit if there is one.
--
-- Also answers whether the queue is new, which means that no process has marked all its shards since the record was
-- created. The value is 2 if this call has created the record, and 1 if an earlier call has.
local is_made = ARGV[1] and redis.call('EXISTS', KEYS[1]) == 0
if is_made then
  redis.call('HSET', KEYS[1], 'readd_policy', ARGV[1], 'shards', ARGV[2], 'parked_add', ARGV[3],
    'generation', ARGV[4], 'new', 1)
  if ARGV[5] ~= '' then
    redis.call('HSET', KEYS[1], 'rate', ARGV[5])
  end
  if ARGV[6] then
    redis.call('HSET', KEYS[1], 'group_by', ARGV[6])
  end
  if ARGV[7] then
    redis.call('HSET', KEYS[1], 'group_limit', ARGV[7])
  end
end
local said = redis.call('HMGET', KEYS[1], 'readd_policy', 'shards', 'parked_add', 'generation', 'dropping', 'new',
  'group_by', 'group_limit', 'rate')
return { said[1], said[2], is_made and 2 or said[6] or 0, said[3], said[4] or 0, said[5] or 0, said[7], said[8], said[9] }
