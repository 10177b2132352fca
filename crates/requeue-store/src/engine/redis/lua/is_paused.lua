-- Answers 1 if the shard is paused.
return standing() and 1 or 0
