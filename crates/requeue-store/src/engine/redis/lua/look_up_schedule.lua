-- Looks up the schedule of a key, which is the argument. Answers with the time, and the key and its schedule if it has
-- one.
local answer, schedule = { now() }, find_schedule(ARGV[1])
if schedule then
  append_schedule(answer, ARGV[1], schedule)
end
return answer
