-- How many are ready, waiting, with workers, dirty, parked, set aside, and how long the one that is next in
-- line has been ready.
local at = now()
local ready, all, since = 0, 0, NEVER
for _, set in ipairs(BANDS) do
  ready = ready + redis.call('ZCOUNT', set, '-inf', at)
  all = all + redis.call('ZCARD', set)
  local head = redis.call('ZRANGEBYSCORE', set, '-inf', at, 'WITHSCORES', 'LIMIT', 0, 1)
  if head[1] then
    -- The row may have been deleted by others.
    local row = redis.call('HGET', ROWS, head[1])
    local added = row and #row >= 16 and struct.unpack('>d', row, 9) or tonumber(head[2])
    if added >= 0 then
      since = math.min(since, added)
    end
  end
end
return {
  ready, all - ready, redis.call('ZCARD', LEASES), redis.call('ZCOUNT', AGAIN, '-inf', at),
  redis.call('ZCARD', PARKED), redis.call('ZCARD', ASIDE), math.max(at - since, 0),
}
