-- Changes a setting of a group, or of the queue, and wakes a waiting process. The arguments are the group after a dot,
-- or an empty text for the queue; the setting (limit, weight, paused or rate); and its value.
local group = ARGV[1] == '' and DEFAULT or string.sub(ARGV[1], 2)
local found = redis.call('HGET', GROUP_SETTINGS, group)
local limit, weight, paused, rate = string.match(found or '', '^(%S+) (%S+) (%S+) ?(.*)$')
local settings = { limit = limit or '-', weight = weight or '1', paused = paused or '0', rate = rate or '' }
settings[ARGV[2]] = ARGV[3]
if ARGV[2] == 'rate' and ARGV[3] ~= '' then
  settings.rate = ARGV[3] .. ' ' .. (string.match(rate or '', '(%d+)$') or 0)
end
local text = settings.limit .. ' ' .. settings.weight .. ' ' .. settings.paused
redis.call('HSET', GROUP_SETTINGS, group, settings.rate == '' and text or text .. ' ' .. settings.rate)
if group ~= DEFAULT then
  redis.call('ZADD', FREED, 0, '1' .. group, 0, '2' .. group, 0, '3' .. group)
end
wake()
