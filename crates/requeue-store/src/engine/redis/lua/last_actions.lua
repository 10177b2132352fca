-- Answers with the time, and the actions of operators, the newest first.
local answer = redis.call('LRANGE', KEYS[5], 0, -1)
table.insert(answer, 1, string.format('%.0f', t))
return answer
