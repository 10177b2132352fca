-- Sets the rate of all starts of the queue, and wakes waiting processes. ARGV: the rate, or empty text. A removed rate is
-- stored as a dash, so that check.lua does not restore it.
local is_paused, time, rate = standing()
local next_at = string.match(rate or '', '(%d+)$') or 0
keep_standing(is_paused, time, ARGV[1] ~= '' and ARGV[1] .. ' ' .. next_at or '-')
wake()
