-- The activity of a queue in each minute: see `engine/activity.rs`. The Redis keys are in the slot of the queue's
-- record.
--
-- PARTS is a hash of the rows of processes. The field of a row is the minute, a colon, and the instance. The row is the
-- time of its last write, a space, and the text that Rust code has encoded. TIMES orders the fields of PARTS by minute.
-- MINUTES contains one merged row for each minute, after the minute and a space. KEYS[5] is the list of the operators'
-- actions. The first argument is the generation of the queue.
local PARTS, TIMES, MINUTES = KEYS[2], KEYS[3], KEYS[4]
local generation = table.remove(ARGV, 1)
if redis.call('HGET', KEYS[1], 'generation') ~= generation or redis.call('HGET', KEYS[1], 'dropping') then
  return redis.error_reply('DROPPED the queue was dropped')
end
local t = now()
local current = math.floor(t / 60000000)

local function time_of(row)
  return tonumber(string.match(row, '^%d+'))
end

local function field_of(minute, instance)
  return minute .. ':' .. instance
end

-- Returns the entry of a minute in MINUTES, and the row in it. Returns nil if there is none.
local function merged_of(minute)
  local entry = redis.call('ZRANGEBYSCORE', MINUTES, minute, minute)[1]
  return entry, entry and string.match(entry, '^%S+ (.*)$')
end
