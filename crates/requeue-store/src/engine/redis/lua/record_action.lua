-- Records an action of an operator, before the earlier ones. ARGV: its texts on lines.
redis.call('LPUSH', KEYS[5], string.format('%.0f\n', t) .. ARGV[1])
redis.call('LTRIM', KEYS[5], 0, 99)
return 1
