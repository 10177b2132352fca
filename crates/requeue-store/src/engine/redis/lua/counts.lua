-- Answers the number of keys in each state, and the time for which the oldest ready key has been ready. Only the first
-- key of each band, or of each band and group, is read. ARGV: nothing, the band and the group at which the last call
-- stopped, or 4 to read no group. The answer ends with a band and a group if there are more groups, because their number is not limited.
local at, begin, after = now(), tonumber(ARGV[1] or 0), ARGV[2]
local since, left = NEVER, 256
-- Returns the time since which a key with the due time `due` has been ready. Another client may have deleted the row.
local function ready_since(key, due)
  local row = redis.call('HGET', ROWS, key)
  -- If the queue has groups, the group and a zero byte precede the row.
  local start = row and TURNS and string.find(row, '\0', 1, true) or 0
  local added = row and #row >= start + 16 and struct.unpack('>d', row, start + 9) or due or NEVER
  return added >= 0 and added or NEVER
end
local answer = { count(at) }
if not after then
  for _, set in ipairs(BANDS) do
    local head = redis.call('ZRANGEBYSCORE', set, '-inf', at, 'WITHSCORES', 'LIMIT', 0, 1)
    if head[1] then
      since = math.min(since, ready_since(head[1], tonumber(head[2])))
    end
  end
end
local head
for band = math.max(begin, 1), TURNS and 3 or 0 do
  head = next_turn(band, band == begin and after or nil)
  while head and left > 0 do
    local _, group, due, key = parse_turn(head)
    since, left = math.min(since, ready_since(key, due)), left - 1
    head, begin, after = next_turn(band, group), band, group
  end
  if head then
    break
  end
end
answer[7] = math.max(at - since, 0)
if head then
  answer[8], answer[9] = begin, after
end
return answer
