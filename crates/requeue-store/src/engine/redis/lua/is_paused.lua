-- Answers 1 if the shard is paused.
return redis.call('GET', PAUSED) == generation and 1 or 0
