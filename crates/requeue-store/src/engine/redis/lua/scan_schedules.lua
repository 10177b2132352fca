-- Takes one step of a scan of the schedules. The argument is the cursor of the last step. Answers with the new cursor,
-- the time, and keys with their schedules.
local found = redis.call('HSCAN', SCHEDULES, ARGV[1], 'COUNT', 500)
local answer = { found[1], now() }
for i = 1, #found[2], 2 do
  local schedule = unpacked_schedule(found[2][i + 1])
  if schedule then
    append_schedule(answer, found[2][i], schedule)
  end
end
return answer
