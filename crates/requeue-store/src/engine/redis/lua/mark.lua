-- Completes or removes the mark that check.lua has written. The arguments are the generation of the queue, and
-- 'confirm' or 'forget'. Answers 1 if the shard then has the mark of this queue. See dropping.rs.
local generation, what = ARGV[1], ARGV[2]
local mark = redis.call('GET', KEYS[10])
if mark == '?' .. generation then
  if what == 'confirm' then
    redis.call('SET', KEYS[10], generation)
    mark = generation
  elseif redis.call('HLEN', ROWS) == 0 then
    redis.call('UNLINK', EPOCH, WAKE, KEYS[10], unpack(KEYS, 17))
  end
end
return mark == generation and 1 or 0
