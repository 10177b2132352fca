-- Removes, pauses or resumes the schedule of a key, and wakes a waiting process. The arguments are the key and the
-- change. Answers 1 if the key has a schedule. A process later computes the next time of a resumed schedule.
local key, change = ARGV[1], ARGV[2]
local schedule = find_schedule(key)
if change == 'remove' then
  redis.call('ZREM', SCHEDULE_TIMES, key)
  local removed = redis.call('HDEL', SCHEDULES, key)
  note_next()
  return removed
elseif not schedule then
  return 0
elseif change == 'pause' then
  schedule.is_paused = '1'
elseif not is_active(schedule) then
  schedule.is_paused, schedule.error, schedule.is_new = '0', '', '1'
end
keep_schedule(key, schedule)
wake()
return 1
