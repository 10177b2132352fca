-- Checks that the Redis keys that exist have the types of a shard. Also checks that this client may run each command of
-- the other scripts, because no script may fail after it has begun to write. Writes a tentative mark of this queue if
-- the shard has no mark. mark.lua later completes this mark.
--
-- The arguments are the generation of the queue, the lowest fencing token, and the rate or an empty text. If the queue
-- has groups, the limit of its groups follows. The rate and the limit are written only if the shard has none. A shard
-- with the mark of another generation is not changed.
--
-- Answers whether the shard existed before, whether it is damaged, its mark, and its rate or an empty text.
local generation, least = ARGV[1], tonumber(ARGV[2])
local was_there = redis.call('GET', EPOCH) and 1 or 0
for i, key in ipairs(KEYS) do
  local found = redis.call('TYPE', key).ok
  local ours = (i == 1 or i == 12 or i == 14 or i == 16 or i == 17) and 'hash' or (i == 8 or i == 10 or i == 13) and 'string'
    or i == 9 and 'list' or 'zset'
  if found ~= 'none' and found ~= ours then
    return redis.error_reply('WRONGTYPE ' .. key .. ' belongs to another program: it is a ' .. found)
  end
end
local mark = redis.call('GET', KEYS[10])
if mark and mark ~= generation and string.sub(mark, 1, 1) ~= '?' then
  return { was_there, 0, mark, '' }
end
-- No key is as long as this text.
local none = string.rep(' ', 4096)
now()
redis.call('HMGET', ROWS, none)
redis.call('HGET', ROWS, none)
redis.call('HSCAN', ROWS, 0)
redis.call('ZSCAN', LEASES, 0)
redis.call('ZRANGEBYLEX', PARKED, '-', '+', 'LIMIT', 0, 1)
redis.call('ZCARD', PARKED)
redis.call('ZCOUNT', PARKED, 0, 0)
redis.call('ZRANGEBYSCORE', PARKED, 0, 0)
redis.call('ZSCORE', PARKED, none)
first(PARKED)
-- The following commands change no data.
redis.call('ZREM', AGAIN, none)
redis.call('HDEL', ROWS, none)
redis.call('ZADD', AGAIN, 0, none)
redis.call('ZREM', AGAIN, none)
if TURNS then
  redis.call('ZREMRANGEBYLEX', AGAIN, '[' .. none, '[' .. none)
end
redis.call('HSET', ROWS, none, none)
redis.call('HDEL', ROWS, none)
redis.call('SET', EPOCH, math.max(last_epoch(), least))
if mark ~= generation then
  mark = '?' .. generation
end
redis.call('SET', KEYS[10], mark)
if TURNS and not redis.call('HGET', GROUP_SETTINGS, DEFAULT) then
  redis.call('HSET', GROUP_SETTINGS, DEFAULT, ARGV[4] .. ' 1 0')
end
local is_paused, time, rate = parse_standing(redis.call('GET', PAUSED), generation)
if ARGV[3] ~= '' and not rate then
  rate = ARGV[3] .. ' 0'
  redis.call('SET', PAUSED, text_of_standing(generation, is_paused, time, rate))
end
redis.call('LLEN', WAKE)
redis.call('LPUSH', WAKE, 1)
redis.call('LTRIM', WAKE, 0, 0)
return { was_there, is_damaged() and 1 or 0, mark, rate_of(rate) or '' }
