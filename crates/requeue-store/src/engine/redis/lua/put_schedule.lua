-- Stores the schedule of a key, and wakes waiting processes. ARGV: the key, its expression or period, its time zone, its
-- priority, and its group. A schedule with the same texts keeps its times. Answers the time, and the key with the schedule.
local key, at = ARGV[1], now()
local was = find_schedule(key)
local schedule = {
  spec = ARGV[2], zone = ARGV[3], next_at = string.format('%.0f', at), is_new = '1', is_paused = was and was.is_paused or '0',
  error = '',
}
if was and was.spec == ARGV[2] and was.zone == ARGV[3] then
  schedule = was
end
schedule.priority, schedule.group = ARGV[4], ARGV[5]
keep_schedule(key, schedule)
wake()
local answer = { at }
append_schedule(answer, key, schedule)
return answer
