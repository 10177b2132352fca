-- The schedules of a shard. SCHEDULES is a hash of the schedules by key. SCHEDULE_TIMES is a sorted set of the keys
-- whose schedules are neither paused nor refused. The score is the time from which a process must handle the schedule,
-- or 0 if its next time is unknown.
local SCHEDULES, SCHEDULE_TIMES = KEYS[#KEYS - 1], KEYS[#KEYS]
local FIELDS = { 'spec', 'zone', 'priority', 'group', 'next_at', 'is_new', 'is_paused', 'error' }

-- Returns the schedule of a key. All values are texts. `group` and `error` begin with a dot, or are empty if they are
-- missing. Returns nil if another client has written an invalid text.
local function unpacked_schedule(text)
  local is_packed, values = pcall(cmsgpack.unpack, text)
  if not is_packed or type(values) ~= 'table' then
    return nil
  end
  local schedule = {}
  for i, field in ipairs(FIELDS) do
    if type(values[i]) ~= 'string' then
      return nil
    end
    schedule[field] = values[i]
  end
  local is_valid = tonumber(schedule.next_at) and tonumber(schedule.priority)
  return is_valid and schedule or nil
end

local function find_schedule(key)
  local text = redis.call('HGET', SCHEDULES, key)
  return text and unpacked_schedule(text)
end

local function is_active(schedule)
  return schedule.is_paused == '0' and schedule.error == ''
end

-- Writes the earliest due time into PAUSED, where claims read it.
local function note_next()
  local is_paused, _, rate = standing()
  local time = first(SCHEDULE_TIMES)
  keep_standing(is_paused, time < NEVER and time or nil, rate)
end

local function keep_schedule(key, schedule)
  local values = {}
  for i, field in ipairs(FIELDS) do
    values[i] = schedule[field]
  end
  redis.call('HSET', SCHEDULES, key, cmsgpack.pack(values))
  if is_active(schedule) then
    redis.call('ZADD', SCHEDULE_TIMES, schedule.is_new == '1' and '0' or schedule.next_at, key)
  else
    redis.call('ZREM', SCHEDULE_TIMES, key)
  end
  note_next()
end

-- Appends a key and the values of its schedule.
local function append_schedule(list, key, schedule)
  list[#list + 1] = key
  for _, field in ipairs(FIELDS) do
    list[#list + 1] = schedule[field]
  end
end
