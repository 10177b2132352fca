-- Sets the rate of all starts of the queue, and wakes waiting processes. ARGV: the rate, or empty text.
local is_paused, rate = read_state()
local next_at = string.match(rate, '(%d+)$') or 0
keep_state(is_paused, ARGV[1] ~= '' and ARGV[1] .. ' ' .. next_at or '')
wake()
