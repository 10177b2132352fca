-- Sets the rate of all starts of the queue, and wakes a waiting process. The arguments are the rate or an empty text,
-- and "first" if an existing rate must not change. A removed rate is stored as a dash, so that check.lua does not
-- restore it. Answers with the rate, or an empty text.
local is_paused, time, rate = standing()
local has = rate_of(rate)
if ARGV[2] == 'first' and has then
  return has
end
local next_at = string.match(rate or '', '(%d+)$') or 0
keep_standing(is_paused, time, ARGV[1] ~= '' and ARGV[1] .. ' ' .. next_at or '-')
wake()
return ARGV[1]
