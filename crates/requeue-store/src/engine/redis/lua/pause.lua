-- Pauses or resumes the deliveries of the shard. ARGV: 1 to pause.
local _, time = standing()
keep_standing(ARGV[1] == '1', time)
if ARGV[1] ~= '1' then
  wake()
end
