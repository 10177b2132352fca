-- Pauses or resumes the deliveries of the shard. The argument is 1 to pause.
local _, time, rate = standing()
keep_standing(ARGV[1] == '1', time, rate)
if ARGV[1] ~= '1' then
  wake()
end
