-- Cancels the run of a key in flight. The argument is the key. Answers 0 if the key is not in flight, 1 if this call
-- has cancelled the run, and 2 if the run was cancelled before.
local key = ARGV[1]
load({ key })
local row = rows[key]
if not row or row.epoch == 0 then
  return 0
elseif cancelled_of({ key })[key] then
  return 2
end
-- This loop removes the entries of runs that have completed without noticing the cancellation.
local known = redis.call('HSCAN', CANCELLED, 0, 'COUNT', 100)[2]
for i = 1, #known, 2 do
  local text = find({ known[i] })[1]
  local other = text and unpacked(text)
  if not other or other.epoch ~= tonumber(known[i + 1]) then
    redis.call('HDEL', CANCELLED, known[i])
  end
end
redis.call('HSET', CANCELLED, key, text_of(row.epoch))
return 1
