-- Looks up a key. ARGV: the key. Answers the time, the key's row, if any, and the fencing token of its cancelled run, if
-- any. In a queue with groups, also its group.
local answer = { now(), redis.call('HGET', ROWS, ARGV[1]), redis.call('HGET', CANCELLED, ARGV[1]) }
if TURNS then
  answer[4] = redis.call('HGET', GROUPS_OF, ARGV[1])
end
return answer
