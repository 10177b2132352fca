-- Sets the rate of all starts of the queue, and wakes waiting processes. ARGV: the rate, or empty text.
local is_paused, time, rate = standing()
local next_at = string.match(rate or '', '(%d+)$') or 0
keep_standing(is_paused, time, ARGV[1] ~= '' and ARGV[1] .. ' ' .. next_at or nil)
wake()
