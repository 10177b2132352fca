-- Answers the number of keys in each state, and how long the next key in line has been ready.
local at = now()
local since = NEVER
for _, set in ipairs(BANDS) do
  local head = redis.call('ZRANGEBYSCORE', set, '-inf', at, 'WITHSCORES', 'LIMIT', 0, 1)
  if head[1] then
    -- Another client may have deleted the row.
    local row = redis.call('HGET', ROWS, head[1])
    local due = tonumber(head[2])
    local added = row and #row >= 16 and struct.unpack('>d', row, 9) or due
    if added >= 0 then
      since = math.min(since, added)
    end
  end
end
local counts = { count(at) }
counts[#counts + 1] = math.max(at - since, 0)
return counts
