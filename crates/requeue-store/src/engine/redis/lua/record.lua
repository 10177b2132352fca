-- Changes the record of a queue if the record has the given generation. The arguments are the generation, the change,
-- and for some changes the new value: a generation, a limit of groups, or a rate. An empty value removes the limit or
-- the rate.
if redis.call('HGET', KEYS[1], 'generation') == ARGV[1] then
  if ARGV[2] == 'remove' then
    redis.call('UNLINK', unpack(KEYS))
  elseif ARGV[2] == 'drop' then
    redis.call('HSET', KEYS[1], 'dropping', 1)
  elseif ARGV[2] == 'confirm' then
    redis.call('HDEL', KEYS[1], 'new')
  elseif ARGV[2] == 'group_limit' or ARGV[2] == 'rate' then
    if ARGV[3] == '' then
      redis.call('HDEL', KEYS[1], ARGV[2])
    else
      redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
    end
  else
    redis.call('HSET', KEYS[1], 'generation', ARGV[3])
  end
end
