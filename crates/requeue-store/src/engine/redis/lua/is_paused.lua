-- Answers 1 if the shard is paused.
return read_state() and 1 or 0
