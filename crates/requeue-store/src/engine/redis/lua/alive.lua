-- Refuses to operate on a dropped queue, even if a new queue has the same name. The first argument is the generation of
-- the queue that the caller has opened. This part removes it from the arguments. See dropping.rs.
local generation, mark = table.remove(ARGV, 1), redis.call('GET', KEYS[10])
if mark ~= generation then
  if mark and string.sub(mark, 1, #generation + 2) == '-' .. generation .. ' ' then
    return redis.error_reply('SEALED the queue is being dropped')
  end
  return redis.error_reply('DROPPED the queue was dropped')
end
