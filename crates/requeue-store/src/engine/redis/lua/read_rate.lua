-- Answers with the time, and the rate of the queue with the time of its next start. The rate is false if the queue has
-- none.
local _, _, rate = standing()
return { now(), rate or false }
