-- Answers 1 if the shard had its pause, the time that claims read, or a rate. Also answers the time, and the first due
-- keys with their schedules. ARGV: the maximum number of keys. Another client, or an eviction, may have removed the
-- time that claims read, which is then written again, or schedules, whose times are then removed. In a queue with
-- groups, a single number of keys in flight may be wrong without a claim noticing.
local answer, most, found = { now() }, tonumber(ARGV[1]), 0
repeat
  local has_lost = false
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', SCHEDULE_TIMES, '-inf', '+inf', 'LIMIT', found, most - found)) do
    local schedule = find_schedule(key)
    if schedule then
      append_schedule(answer, key, schedule)
      found = found + 1
    else
      -- The time of a missing schedule would stay due, and hide later times.
      redis.call('ZREM', SCHEDULE_TIMES, key)
      has_lost = true
    end
  end
until not has_lost
local is_paused, noted, rate = standing()
if (noted or NEVER) ~= first(SCHEDULE_TIMES) then
  note_next()
end
if TURNS then
  -- A scan can return a field twice.
  local counts, sum, cursor = {}, 0, '0'
  repeat
    local step = redis.call('HSCAN', IN_FLIGHT, cursor, 'COUNT', 1000)
    cursor = step[1]
    for i = 1, #step[2], 2 do
      counts[step[2][i]] = tonumber(step[2][i + 1]) or NEVER
    end
  until cursor == '0'
  for group, count in pairs(counts) do
    sum = sum + (group == DEFAULT and -count or count)
  end
  if sum ~= 0 then
    distrust_counts()
  end
end
return { (is_paused or noted or rate) and 1 or 0, answer }
