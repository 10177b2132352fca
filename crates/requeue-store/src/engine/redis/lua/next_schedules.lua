-- Reads the first schedules in the order of their due times. The argument is the maximum number of schedules. Answers 1
-- if the shard has a pause, a time that claims read, or a rate. The time, and the keys with their schedules, follow.
--
-- Another client or an eviction may have removed the time that claims read. The script then writes it again. If a
-- schedule is missing, the script removes its time. If the queue has groups, the script also checks the numbers of keys
-- in flight, because a claim does not notice a single wrong number.
local answer, most, found = { now() }, tonumber(ARGV[1]), 0
repeat
  local has_lost = false
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', SCHEDULE_TIMES, '-inf', '+inf', 'LIMIT', found, most - found)) do
    local schedule = find_schedule(key)
    if schedule then
      append_schedule(answer, key, schedule)
      found = found + 1
    else
      -- The time of a missing schedule would always be due, and would hide later times.
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
