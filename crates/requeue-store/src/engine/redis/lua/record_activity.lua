-- Writes the row of a process for a minute, unless this minute is over. The arguments are the minute, or an empty text
-- for the current minute; the instance; and the row without its time. Answers with the current minute, whether the row
-- was written, and whether there are rows to merge.
local minute = tonumber(ARGV[1]) or current
local is_written = math.abs(minute - current) <= 1
if is_written then
  local field = field_of(string.format('%.0f', minute), ARGV[2])
  local last = redis.call('HGET', PARTS, field)
  local at = math.max(t, last and time_of(last) + 1 or 0)
  redis.call('HSET', PARTS, field, string.format('%.0f ', at) .. ARGV[3])
  redis.call('ZADD', TIMES, minute, field)
end
local old = redis.call('ZRANGEBYSCORE', TIMES, '-inf', '(' .. current - 2, 'LIMIT', 0, 1)
return { current, is_written and 1 or 0, #old }
