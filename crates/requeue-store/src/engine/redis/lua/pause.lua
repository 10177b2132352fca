-- Pauses or resumes the deliveries of the shard. ARGV: 1 to pause.
local _, rate = read_state()
keep_state(ARGV[1] == '1', rate)
if ARGV[1] ~= '1' then
  wake()
end
