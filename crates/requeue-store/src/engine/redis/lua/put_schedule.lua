-- Stores the schedule of a key, and wakes a waiting process. The arguments are the key, the expression or period, the
-- time zone, the priority, and the group. If the texts are the same as before, the times remain. Answers with the time,
-- the key and its schedule.
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
