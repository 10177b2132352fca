-- Replaces rows of a minute with a merged row. The arguments are the minute, and the merged row without its time. If
-- this row is empty, no row remains. The instance of each replaced row follows, with the time of its last write.
-- Answers 0, and changes nothing, if one of the rows was written after the read, or the minute has another merged row.
-- Also removes rows that are older than seven days.
local minute, row = ARGV[1], ARGV[2]
local entry, merged = merged_of(minute)
local at, is_known = t, not entry
for n = 3, #ARGV, 2 do
  local instance, time = ARGV[n], tonumber(ARGV[n + 1])
  local found = merged
  if instance ~= '' then
    found = redis.call('HGET', PARTS, field_of(minute, instance))
  else
    is_known = true
  end
  if not found or time_of(found) ~= time then
    return 0
  end
  at = math.max(at, time + 1)
end
if not is_known then
  return 0
end
for n = 3, #ARGV, 2 do
  if ARGV[n] ~= '' then
    local field = field_of(minute, ARGV[n])
    redis.call('HDEL', PARTS, field)
    redis.call('ZREM', TIMES, field)
  end
end
if entry then
  redis.call('ZREM', MINUTES, entry)
end
if row ~= '' then
  redis.call('ZADD', MINUTES, minute, string.format('%s %.0f ', minute, at) .. row)
end
for _, over in ipairs(redis.call('ZRANGEBYSCORE', MINUTES, '-inf', '(' .. current - 7 * 24 * 60)) do
  redis.call('ZREM', MINUTES, over)
end
for _, over in ipairs(redis.call('ZRANGEBYSCORE', TIMES, '-inf', '(' .. current - 7 * 24 * 60)) do
  redis.call('HDEL', PARTS, over)
  redis.call('ZREM', TIMES, over)
end
return 1
