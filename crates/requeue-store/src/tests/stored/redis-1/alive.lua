-- Refuses to operate on a queue that was dropped, even if one of the same name exists again. The first of
-- ARGV is the generation of the queue that the caller has open. It is removed from ARGV. See dropping.rs.
local generation, mark = table.remove(ARGV, 1), redis.call('GET', KEYS[10])
if mark ~= generation then
  if mark and string.sub(mark, 1, #generation + 2) == '-' .. generation .. ' ' then
    return redis.error_reply('SEALED the queue is being dropped')
  end
  return redis.error_reply('DROPPED the queue was dropped')
end
