-- Takes one step of a walk over all keys, or over the keys in flight. The arguments are 'all' or the set, and the
-- cursor of the last step. Answers with the new cursor and the time. The keys follow, each with its row and the fencing
-- token of its cancelled run, if it has one.
local which, cursor = ARGV[1], ARGV[2]
local found
if which == 'all' then
  found = redis.call('HSCAN', ROWS, cursor, 'COUNT', 500)
else
  found = redis.call('ZSCAN', LEASES, cursor, 'COUNT', 500)
end
local answer, some_cancelled = { found[1], now() }, redis.call('HLEN', CANCELLED) > 0
for i = 1, #found[2], 2 do
  local key, row = found[2][i], found[2][i + 1]
  if which ~= 'all' then
    row = redis.call('HGET', ROWS, key)
  end
  if row then
    answer[#answer + 1] = key
    answer[#answer + 1] = row
    answer[#answer + 1] = some_cancelled and redis.call('HGET', CANCELLED, key) or ''
  end
end
return answer
