-- Pauses or resumes the deliveries of the shard. ARGV: 1 to pause.
redis.call('SET', PAUSED, ARGV[1] == '1' and generation or '')
if ARGV[1] ~= '1' then
  wake()
end
