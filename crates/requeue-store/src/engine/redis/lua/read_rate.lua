-- Answers the time, and the rate of the queue with the time of its next start, if it has one.
local _, _, rate = standing()
return { now(), rate or false }
