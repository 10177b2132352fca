-- Answers the number of keys that a claim would find, and the time until there may be one: -1 if never, -2
-- if the shard is damaged.
local at = now()
local due = redis.call('ZCOUNT', LEASES, '-inf', at)
local is_paused = redis.call('GET', PAUSED) == generation
for _, set in ipairs(is_paused and {} or BANDS) do
  due = due + redis.call('ZCOUNT', set, '-inf', at)
end
if due == 0 and is_damaged() then
  return { 0, -2 }
end
local next = math.min(is_paused and NEVER or next_due(), first(LEASES))
return { due, next < NEVER and math.max(next - at, 0) or -1 }
