-- Looks up the schedule of a key. ARGV: the key. Answers the time, and the key with its schedule, if it has one.
local answer, schedule = { now() }, find_schedule(ARGV[1])
if schedule then
  append_schedule(answer, ARGV[1], schedule)
end
return answer
