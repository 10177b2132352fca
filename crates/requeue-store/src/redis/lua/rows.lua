-- What is kept of a key, and what each verb does to it: as row.rs says, which this is held to.
-- Times are microseconds since 1970, and 0 is none. Verbs change rows here; `keep` writes them at the
-- end, so that a script that fails has changed nothing.

-- The rows at hand, by key, false where there is none; and where they stand: in which sorted set with
-- what score, and of those with a worker, when they are to run again.
local rows, sets, scores, again = {}, {}, {}, {}

local function unpacked(packed)
  local f = cmsgpack.unpack(packed)
  return {
    at = f[1], since = f[2], adds = f[3] or 0, reasons = f[4] or 0, priority = f[5] or 0,
    epoch = f[6] or 0, lease_until = f[7] or 0, run_since = f[8] or 0,
    run_adds = f[9] or 0, run_reasons = f[10] or 0, run_priority = f[11] or 0,
    failures = f[12] or 0, steps = f[13] or 0, backing_off = f[14] or 0, not_before = f[15] or 0,
    parked = f[16] or 0, error = f[17] or '',
  }
end

-- In the same order, without what is nothing at the end.
local function packed(row)
  local f = {
    row.at, row.since, row.adds, row.reasons, row.priority,
    row.epoch, row.lease_until, row.run_since,
    row.run_adds, row.run_reasons, row.run_priority,
    row.failures, row.steps, row.backing_off, row.not_before,
    row.parked, row.error,
  }
  local last = #f
  while f[last] == 0 or f[last] == '' do
    f[last] = nil
    last = last - 1
  end
  return cmsgpack.pack(f)
end

local function nothing()
  return unpacked(cmsgpack.pack({ 0, 0 }))
end

local function place(row)
  if row.parked == 1 then
    return PARKED, row.since
  elseif row.epoch > 0 then
    return LEASES, row.lease_until
  end
  return BANDS[row.priority + 2], row.at
end

local function runs_again(row)
  return row.epoch > 0 and row.at > 0 and row.at or nil
end

local function load(keys)
  local found = redis.call('HMGET', ROWS, unpack(keys))
  for i, key in ipairs(keys) do
    local row = found[i] and unpacked(found[i])
    rows[key], sets[key], scores[key], again[key] = row, nil, nil, nil
    if row then
      sets[key], scores[key] = place(row)
      again[key] = runs_again(row)
    end
  end
end

-- Writes the rows of these keys, and wakes one who waits if one is ready, or due before all others.
local function keep(keys, now)
  local written, gone, put, taken, done = {}, {}, {}, {}, {}
  local soonest = NEVER
  local function add(lists, set, what)
    local list = lists[set]
    if not list then
      list = {}
      lists[set] = list
    end
    list[#list + 1] = what
  end
  for _, key in ipairs(keys) do
    local row, was = rows[key], sets[key]
    local set, score, more
    if done[key] then
      set, score, was = nil, nil, nil
    elseif row then
      set, score = place(row)
      more = runs_again(row)
      written[#written + 1] = key
      written[#written + 1] = packed(row)
    elseif was then
      gone[#gone + 1] = key
    end
    if was and was ~= set then
      add(taken, was, key)
    end
    if set and (was ~= set or scores[key] ~= score) then
      add(put, set, score)
      add(put, set, key)
      if set ~= LEASES and set ~= PARKED then
        soonest = math.min(soonest, score)
      end
    end
    if not done[key] and again[key] ~= more then
      if more then
        add(put, AGAIN, more)
        add(put, AGAIN, key)
      else
        add(taken, AGAIN, key)
      end
    end
    done[key] = true
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

-- What is left of the row, if anything.
local function rest(row)
  return (row.at > 0 or row.epoch > 0 or row.parked == 1) and row
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
  row.failures, row.steps, row.backing_off, row.not_before, row.error = 0, 0, 0, 0, ''
end

local function take_back(row)
  forget(row)
  row.at, row.parked, row.adds, row.reasons = 0, 0, 0, 0
end

-- A run is wanted at `at`. The answers are those of Added: 0 New, 1 Coalesced, 2 Dirty.
local function demand(row, at, merge, now)
  if is_dirty(row, now) then
    return 1
  elseif at <= now then
    row.not_before, row.at, row.since = 0, now, now
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

-- Ends the hand-out. What is left of the key, if anything.
local function finish(row, how, error, hold, now)
  if how.what == 'succeed' or how.what == 'later' then
    forget(row)
  elseif how.what == 'put_back' then
    note(row, how)
    demand(row, math.max(row.not_before, now), 'earliest', now)
  else
    fail(row, how, error, hold, now)
  end
  row.epoch, row.lease_until, row.run_since = 0, 0, 0
  row.run_adds, row.run_reasons, row.run_priority = 0, 0, 0
  if is_dirty(row, now) then
    -- It goes to the end, and was added when it was.
    row.at = now
  end
  if how.what == 'later' then
    note(row, how)
    demand(row, after(now, how.delay), 'earliest', now)
  end
  return rest(row)
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

local ENDS = { 'what', 'adds', 'reasons', 'priority', 'most', 'delay', 'cap', 'share' }
