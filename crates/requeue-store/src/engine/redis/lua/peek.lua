-- Answers the number of keys that a claim would find, and the time until there may be one: -1 if never, -2
-- if the shard is damaged.
local at = now()
local due = redis.call('ZCOUNT', LEASES, '-inf', at)
for _, set in ipairs(BANDS) do
  due = due + redis.call('ZCOUNT', set, '-inf', at)
end
if due == 0 and is_damaged() then
  return { 0, -2 }
end
local next = math.min(next_due(), first(LEASES))
return { due, next < NEVER and math.max(next - at, 0) or -1 }
