-- Records an action of an operator, and keeps the last 100 actions. The argument has the texts of the action, one per
-- line.
redis.call('LPUSH', KEYS[5], string.format('%.0f\n', t) .. ARGV[1])
redis.call('LTRIM', KEYS[5], 0, 99)
return 1
