-- Answers with the number of keys in each state, and the time for which the oldest ready key has been ready.
local at = now()
local since = NEVER
-- Returns the time since which a key with the due time `due` has been ready. Another client may have deleted its row.
local function ready_since(key, due)
  local row = redis.call('HGET', ROWS, key)
  -- If the queue has groups, the group and a zero byte precede the row.
  local start = row and TURNS and string.find(row, '\0', 1, true) or 0
  local added = row and #row >= start + 16 and struct.unpack('>d', row, start + 9) or due or NEVER
  return added >= 0 and added or NEVER
end
for _, set in ipairs(BANDS) do
  local head = redis.call('ZRANGEBYSCORE', set, '-inf', at, 'WITHSCORES', 'LIMIT', 0, 1)
  if head[1] then
    since = math.min(since, ready_since(head[1], tonumber(head[2])))
  end
end
-- If the queue has groups, the script reads only the first keys of the first groups, because the number of groups is
-- not limited.
local GROUPS = 256
for band = 1, TURNS and 3 or 0 do
  local head = next_turn(band)
  for _ = 1, GROUPS do
    if not head then
      break
    end
    local _, group, due, key = parse_turn(head)
    since = math.min(since, ready_since(key, due))
    head = next_turn(band, group)
  end
end
local counts = { count(at) }
counts[#counts + 1] = math.max(at - since, 0)
return counts
