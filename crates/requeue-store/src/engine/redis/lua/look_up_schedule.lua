-- Looks up the schedule of a key. The argument is the key. Answers with the time, and the key and its schedule if it
-- has one.
local answer, schedule = { now() }, find_schedule(ARGV[1])
if schedule then
  append_schedule(answer, ARGV[1], schedule)
end
return answer
