-- Answers with the number of keys that a claim would find. The time until another key may be ready follows, or false if
-- this time is unknown or there is none. Two more values follow: 1 if the shard is damaged, and the time until a
-- schedule is due, or false.
local at = now()
local due = redis.call('ZCOUNT', LEASES, '-inf', at)
local is_paused, schedule_at = standing()
local schedule_in = schedule_at and math.max(schedule_at - at, 0) or false
for _, set in ipairs(is_paused and {} or BANDS) do
  due = due + redis.call('ZCOUNT', set, '-inf', at)
end
if TURNS and not is_paused then
  -- The number is an upper bound, because some of these keys may belong to groups that have reached their limits.
  due = due + redis.call('ZCARD', TURNS)
end
if due == 0 and is_damaged() then
  return { 0, false, 1, schedule_in }
end
local next = math.min(is_paused and NEVER or next_due(), first(LEASES))
return { due, next < NEVER and math.max(next - at, 0), 0, schedule_in }
