-- Answers the time, and the keys whose schedules are due first, with their schedules. ARGV: the greatest number of keys.
local answer = { now() }
local most = tonumber(ARGV[1])
for _, key in ipairs(most > 0 and redis.call('ZRANGE', SCHEDULE_TIMES, 0, most - 1) or {}) do
  local schedule = find_schedule(key)
  if schedule then
    append_schedule(answer, key, schedule)
  end
end
return answer
