-- Performs one step of the drop of a queue on one shard. The arguments are the generation of the queue, the step, and
-- the name of the drop. See dropping.rs.
local generation, what, name = ARGV[1], ARGV[2], ARGV[3]
local mark = redis.call('GET', KEYS[10]) or ''
local of, by, since = string.match(mark, '^%-(%S+) (%S+) (%S+)$')
local at = now()

-- Returns the number of schedules. Another program may have stored a string under their Redis key. The drop must
-- succeed nevertheless.
local function count_schedules()
  local hash = KEYS[#KEYS - 1]
  return redis.call('TYPE', hash).ok == 'hash' and redis.call('HLEN', hash) or 0
end

if what == 'seal' then
  -- From now on, no script operates on the shard. The answer is 0 if another drop has sealed the shard within the last
  -- 10 s. Otherwise, it is 1, the last fencing token, the number of keys in each state, and the number of schedules.
  if of == generation and by ~= name and at - tonumber(since) < 10000000 then
    return { 0 }
  end
  redis.call('SET', KEYS[10], string.format('-%s %s %.0f', generation, name, at))
  local answer = { 1, last_epoch(), count(at) }
  -- This value stands for the age of the oldest ready key, which a drop does not need.
  answer[#answer + 1] = 0
  answer[#answer + 1] = count_schedules()
  return answer
elseif what == 'schedules' then
  return { 1, count_schedules() }
elseif what == 'unseal' then
  if of == generation and by == name then
    redis.call('SET', KEYS[10], generation)
  end
elseif mark == '' or mark == generation or mark == '?' .. generation or of == generation then
  redis.call('UNLINK', unpack(KEYS))
end
return { 1 }
