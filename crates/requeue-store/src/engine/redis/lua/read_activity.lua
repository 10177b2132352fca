-- Reads rows. The argument is a duration in microseconds: the script then reads the rows of all minutes that end less
-- than this duration before now. If it is an empty text, the script reads some of the rows that can be merged, and the
-- merged rows of their minutes. Answers with the time, and with the minute, the instance and the text of each row.
local answer = { string.format('%.0f', t) }
local function append(minute, instance, row)
  answer[#answer + 1] = minute
  answer[#answer + 1] = instance
  answer[#answer + 1] = row
end
local fields
if ARGV[1] ~= '' then
  local first = math.floor((t - ARGV[1]) / 60000000)
  fields = redis.call('ZRANGEBYSCORE', TIMES, first, '+inf')
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', MINUTES, first, '+inf')) do
    local minute, row = string.match(entry, '^(%S+) (.*)$')
    append(minute, '', row)
  end
else
  fields = redis.call('ZRANGEBYSCORE', TIMES, '-inf', '(' .. current - 2, 'LIMIT', 0, 1000)
end
local last
for _, field in ipairs(fields) do
  local minute, instance = string.match(field, '^(%d+):(.*)$')
  local row = redis.call('HGET', PARTS, field)
  if row then
    append(minute, instance, row)
  end
  if ARGV[1] == '' and minute ~= last then
    local entry, merged = merged_of(minute)
    if entry then
      append(minute, '', merged)
    end
    last = minute
  end
end
return answer
