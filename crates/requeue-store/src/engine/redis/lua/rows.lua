-- What is kept of a key, and what each verb does to it: as row.rs says, which this is held to.
-- Times are microseconds since 1970, and 0 is none. Verbs change rows here; `keep` writes them at the
-- end, so that a script that fails has changed nothing.

-- What a row is where nothing else is said.
local NOTHING = { __index = {
  at = 0, since = 0, adds = 0, reasons = 0, priority = 0,
  epoch = 0, lease_until = 0, run_since = 0, run_adds = 0, run_reasons = 0, run_priority = 0,
  failures = 0, steps = 0, backing_off = 0, not_before = 0, parked = 0, error = '',
} }
-- How a row is kept: one that is pending, one with a worker, and one that has failed, after which
-- comes the error. values.rs reads the same.
local PENDING = '>ddI4I4b'
local RUNNING = PENDING .. 'dddI4I4b'
local FAILED = RUNNING .. 'I4I4ddb'
local RUNNING_SIZE, FAILED_SIZE = struct.size(RUNNING), struct.size(FAILED)

-- The rows at hand, by key.
local rows = {}

local function unpacked(packed)
  local row
  if #packed < RUNNING_SIZE then
    local at, since, adds, reasons, priority = struct.unpack(PENDING, packed)
    row = { at = at, since = since, adds = adds, reasons = reasons, priority = priority }
  else
    local at, since, adds, reasons, priority, epoch, lease_until, run_since, run_adds, run_reasons,
      run_priority = struct.unpack(RUNNING, packed)
    row = {
      at = at, since = since, adds = adds, reasons = reasons, priority = priority,
      epoch = epoch, lease_until = lease_until, run_since = run_since,
      run_adds = run_adds, run_reasons = run_reasons, run_priority = run_priority,
    }
    if #packed >= FAILED_SIZE then
      row.failures, row.steps, row.backing_off, row.not_before, row.parked =
        struct.unpack('>I4I4ddb', packed, RUNNING_SIZE + 1)
      row.error = string.sub(packed, FAILED_SIZE + 1)
    end
  end
  return setmetatable(row, NOTHING)
end

local function has_failed(row)
  return row.failures > 0 or row.steps > 0 or row.not_before > 0 or row.parked == 1
end

local function packed(row)
  if has_failed(row) then
    return struct.pack(
      FAILED, row.at, row.since, row.adds, row.reasons, row.priority,
      row.epoch, row.lease_until, row.run_since,
      row.run_adds, row.run_reasons, row.run_priority,
      row.failures, row.steps, row.backing_off, row.not_before, row.parked
    ) .. row.error
  elseif row.epoch > 0 then
    return struct.pack(
      RUNNING, row.at, row.since, row.adds, row.reasons, row.priority,
      row.epoch, row.lease_until, row.run_since,
      row.run_adds, row.run_reasons, row.run_priority
    )
  end
  return struct.pack(PENDING, row.at, row.since, row.adds, row.reasons, row.priority)
end

-- In which sorted set the key stands, and where; none if nothing is to be kept of it.
local function place(row)
  if row.parked == 1 then
    -- All at the same: in order of the keys.
    return PARKED, 0
  elseif row.epoch > 0 then
    return LEASES, row.lease_until
  elseif row.at > 0 then
    return BANDS[row.priority + 2], row.at
  end
end

-- Of a key with a worker: when it is to run again.
local function runs_again(row)
  return row.epoch > 0 and row.at > 0 and row.at or nil
end

-- What is kept of each of these keys, or false.
local function find(keys)
  return redis.call('HMGET', ROWS, unpack(keys))
end

-- The row of a key, of which this is kept.
local function read(key, text)
  local row = unpacked(text)
  row.was_in, row.was_at = place(row)
  row.was_again = runs_again(row)
  rows[key] = row
  return row
end

local function load(keys)
  for i, text in ipairs(find(keys)) do
    if text then
      read(keys[i], text)
    end
  end
end

-- The row of a key of which there was none.
local function new()
  return setmetatable({ at = 0, since = 0, adds = 0, reasons = 0, priority = 0 }, NOTHING)
end

-- From now on the row is that of several keys, and doesn't change.
local function share(row)
  row.text = packed(row)
  row.set, row.score = place(row)
end

-- Times as they are written, of which many keys have the same.
local written_as = {}
local function text_of(time)
  local text = written_as[time]
  if not text then
    text = string.format('%.0f', time)
    written_as[time] = text
  end
  return text
end

local function append(lists, set, what)
  local list = lists[set]
  if not list then
    list = {}
    lists[set] = list
  end
  list[#list + 1] = what
end

-- Writes the rows of these keys, each of which is there once, and wakes one who waits if one is ready,
-- or due before all others.
local function keep(keys, now)
  local written, gone, put, taken = {}, {}, {}, {}
  local soonest = NEVER
  for i = 1, #keys do
    local key = keys[i]
    local row = rows[key]
    local set, at, text = row.set, row.score, row.text
    if not text then
      set, at = place(row)
      text = set and packed(row)
    end
    local was_in = row.was_in
    if set then
      written[#written + 1] = key
      written[#written + 1] = text
      if was_in ~= set or row.was_at ~= at then
        append(put, set, text_of(at))
        append(put, set, key)
        if at < soonest and set ~= LEASES and set ~= PARKED then
          soonest = at
        end
      end
    elseif was_in then
      gone[#gone + 1] = key
    end
    if was_in and was_in ~= set then
      append(taken, was_in, key)
    end
    local again = runs_again(row)
    if again and again ~= row.was_again then
      append(put, AGAIN, text_of(again))
      append(put, AGAIN, key)
    elseif row.was_again and not again then
      append(taken, AGAIN, key)
    end
  end
  local wakes = soonest <= now or soonest < NEVER and soonest < next_due()
  if #written > 0 then
    redis.call('HSET', ROWS, unpack(written))
  end
  if #gone > 0 then
    redis.call('HDEL', ROWS, unpack(gone))
  end
  for set, list in pairs(taken) do
    redis.call('ZREM', set, unpack(list))
  end
  for set, list in pairs(put) do
    redis.call('ZADD', set, unpack(list))
  end
  if wakes then
    wake()
  end
end

local function after(now, delay)
  return math.min(now + delay, NEVER)
end

-- Whether the run that is pending is due.
local function is_dirty(row, now)
  return row.at > 0 and row.at <= now
end

local MOST = 4294967295

local function note(row, asked)
  if row.at > 0 then
    row.priority = math.max(row.priority, asked.priority)
  else
    row.priority = asked.priority
  end
  row.adds = math.min(row.adds + asked.adds, MOST)
  row.reasons = bit.bor(row.reasons, asked.reasons) % 4294967296
end

local function forget(row)
  if has_failed(row) then
    row.failures, row.steps, row.backing_off, row.not_before, row.error = 0, 0, 0, 0, ''
  end
end

local function take_back(row)
  forget(row)
  row.at, row.adds, row.reasons = 0, 0, 0
  if row.parked == 1 then
    row.parked = 0
  end
end

-- A run is wanted at `at`. The answers are those of Added: 0 New, 1 Coalesced, 2 Dirty.
local function demand(row, at, merge, now)
  if is_dirty(row, now) then
    return 1
  elseif at <= now then
    if row.not_before > 0 then
      row.not_before = 0
    end
    row.at, row.since = now, now
    return row.epoch > 0 and 2 or 0
  end
  local answer = 0
  if row.at > 0 then
    answer = 1
    if merge == 'earliest' then
      at = math.min(row.at, at)
    elseif merge == 'latest' then
      at = math.max(row.at, at)
    end
  end
  row.at, row.since = at, at
  return answer
end

local function back_off(row, how, now)
  if now < row.backing_off then
    return row.backing_off - now
  end
  local expired = after(after(row.backing_off, how.cap), how.cap) < now
  local steps = expired and 0 or row.steps
  local most = math.min(how.delay * 2 ^ math.min(steps, 63), how.cap)
  local delay = math.ceil(most * (0.5 + how.share / 2))
  row.steps = math.min(steps + 1, MOST)
  row.backing_off = after(now, delay)
  return delay
end

local function fail(row, how, error, hold, now)
  row.failures = math.min(row.failures + 1, MOST)
  row.error = error
  note(row, how)
  local delay
  if how.what == 'backoff' then
    delay = back_off(row, how, now)
  elseif how.what == 'exactly' then
    delay = how.delay
  end
  if not delay or row.failures >= how.most then
    if row.at > 0 then
      -- Something else is wanted of it by now: it begins anew.
      forget(row)
    else
      row.parked, row.since = 1, now
    end
    return
  end
  local at = after(now, delay)
  if hold then
    row.not_before = math.max(row.not_before, at)
    at = row.not_before
    if at > now and row.at > 0 then
      -- One run for the failure and whatever was asked for meanwhile.
      row.at = math.max(row.at, at)
      row.since = row.at
    end
  end
  demand(row, at, 'earliest', now)
end

-- Ends the hand-out.
local function finish(row, how, error, hold, now)
  local place
  if how.what == 'succeed' or how.what == 'later' then
    forget(row)
  elseif how.what == 'put_back' then
    note(row, how)
    demand(row, math.max(row.not_before, now), 'earliest', now)
  elseif how.what == 'release' then
    note(row, how)
    place = row.run_since - how.delay
  else
    fail(row, how, error, hold, now)
  end
  row.epoch, row.lease_until, row.run_since = 0, 0, 0
  row.run_adds, row.run_reasons, row.run_priority = 0, 0, 0
  if place then
    -- Adds meanwhile have coalesced, as with any key that is ready.
    row.at, row.since = place, place
  elseif is_dirty(row, now) then
    -- It goes to the end, and was added when it was.
    row.at = now
  end
  if how.what == 'later' then
    note(row, how)
    demand(row, after(now, how.delay), 'earliest', now)
  end
end

-- Whether the hand-out with this number is its holder's still.
local function is_held(row, epoch, now)
  return row and row.epoch > 0 and row.epoch == epoch and row.lease_until > now
end

-- The words of `spec`, by these names. Most of a batch say the same.
local specs = {}
local function parsed(spec, names)
  local found = specs[spec]
  if not found then
    found = {}
    local i = 0
    for word in string.gmatch(spec, '%S+') do
      i = i + 1
      found[names[i]] = tonumber(word) or word
    end
    specs[spec] = found
  end
  return found
end

-- Every so many-th argument, from the second on: the keys.
local function keys_given(step)
  local keys = {}
  for i = 2, #ARGV, step do
    keys[#keys + 1] = ARGV[i]
  end
  return keys
end

local ENDS = { 'what', 'adds', 'reasons', 'priority', 'most', 'delay', 'cap', 'share' }
