-- Answers the time, and the keys whose schedules are due first, with their schedules. ARGV: the greatest number of keys.
-- Another client, or an eviction, may have removed the time that claims read, which is then written again.
local answer = { now() }
local most = tonumber(ARGV[1])
local _, noted = standing()
if (noted or NEVER) ~= first(SCHEDULE_TIMES) then
  note_next()
end
for _, key in ipairs(most > 0 and redis.call('ZRANGE', SCHEDULE_TIMES, 0, most - 1) or {}) do
  local schedule = find_schedule(key)
  if schedule then
    append_schedule(answer, key, schedule)
  end
end
return answer
