-- Some of the keys in this walk over all, or those with workers, and what is kept of them. ARGV: which,
-- and where the last step ended. Where this one ends, the time, and the keys.
local which, cursor = ARGV[1], ARGV[2]
local found
if which == 'all' then
  found = redis.call('HSCAN', ROWS, cursor, 'COUNT', 500)
else
  found = redis.call('ZSCAN', LEASES, cursor, 'COUNT', 500)
end
local answer = { found[1], now() }
for i = 1, #found[2], 2 do
  local key, row = found[2][i], found[2][i + 1]
  if which ~= 'all' then
    row = redis.call('HGET', ROWS, key)
  end
  if row then
    answer[#answer + 1] = key
    answer[#answer + 1] = row
  end
end
return answer
