-- Sets the next time of a schedule, or the reason why it has no next time. Adds the key, unless the schedule is new.
-- Answers 0, and changes nothing, if another process has changed the schedule. The script is atomic, so only one of
-- several processes adds the key.
--
-- The first arguments are the key of the schedule and its values, as the caller has read them. Further arguments
-- follow: the next time, or an empty text; the reason after a dot, or an empty text; and the arguments of add.lua.
local said = {}
for i = 1, 7 do
  said[i] = table.remove(ARGV, 1)
end
local key, next_at, why = said[1], said[6], said[7]
local schedule = find_schedule(key)
if not schedule or not is_active(schedule) or schedule.spec ~= said[2] or schedule.zone ~= said[3]
  or schedule.next_at ~= said[4] or schedule.is_new ~= said[5]
then
  -- Another client may have deleted the schedule, but not its time.
  if not schedule and redis.call('ZREM', SCHEDULE_TIMES, key) > 0 then
    note_next()
  end
  return 0
end
if why == '' and schedule.is_new == '0' then
  add_keys()
end
if why == '' then
  schedule.next_at, schedule.is_new = next_at, '0'
else
  schedule.error = why
end
keep_schedule(key, schedule)
wake()
return 1
