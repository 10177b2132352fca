-- The row of a key, and the effect of each operation on it. row.rs is the reference. Times are in microseconds since
-- 1970, and 0 means that there is no time. An operation changes rows in memory. `keep` writes the rows at the end of
-- the script, so that a script that fails has changed nothing.

-- The default values of a row.
local NOTHING = { __index = {
  at = 0, since = 0, adds = 0, flags = 0, priority = 0,
  epoch = 0, lease_until = 0, run_since = 0, run_adds = 0, run_flags = 0, run_priority = 0,
  worker = '', failures = 0, steps = 0, backing_off = 0, not_before = 0, parked = 0, error = '',
  bound = 0, failed_at = 0, trace = '', run_trace = '', past = '',
} }
-- The encodings of a row. PENDING is the encoding of a pending key. RUNNING is for a key in flight, and ends with the
-- worker's name after its length. If the row has failures, a bound, trace contexts or a past, the fields of EXTRA
-- follow, and then the error.
--
-- Two kinds of values can precede the error. If the time of the last failure is known, it precedes the error, and 2 is
-- added to `parked`. If there are trace contexts or a past, three texts follow, each after its length, and 4 is added
-- to `parked`. The texts are the trace contexts of the pending run, those of the run in flight, and the past. values.rs
-- reads the same encodings.
local PENDING = '>ddI4I4b'
local RUN, EXTRA = '>dddI4I4bBc0', '>I4I4ddbd'
local RUNNING = PENDING .. string.sub(RUN, 2)
-- If the queue has groups, the group and a zero byte precede the row.
local STORED_RUNNING = '>c0' .. string.sub(RUNNING, 2)
local PENDING_SIZE = struct.size(PENDING)
-- These sizes do not include the name of the worker.
local RUNNING_SIZE, EXTRA_SIZE = struct.size(PENDING .. 'dddI4I4bB'), struct.size(EXTRA)

-- `rows` has the loaded rows by key. `unreadable` has the reason for each row that cannot be read.
local rows, unreadable = {}, {}

local function is_priority(priority)
  return priority >= -1 and priority <= 1
end

-- The multi-byte characters of UTF-8, except control characters.
local LONG_CHARACTERS = {
  '\194[\160-\191]', '[\195-\223][\128-\191]',
  '\224[\160-\191][\128-\191]', '[\225-\236\238\239][\128-\191][\128-\191]',
  '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]',
  '[\241-\243][\128-\191][\128-\191][\128-\191]', '\244[\128-\143][\128-\191][\128-\191]',
}

-- Returns true if `name` is empty or a valid name of a worker.
local function is_name(name)
  if #name > 100 then
    return false
  elseif string.find(name, '[^ -~]') then
    for _, character in ipairs(LONG_CHARACTERS) do
      name = string.gsub(name, character, ' ')
    end
  end
  return not string.find(name, '[^ -~]')
end

-- Describes the first invalid time, or returns nil. The arguments are a name, its time, the next name, and so on.
local function wrong_time(name, time, ...)
  if not name then
    return nil
  elseif not is_time(time) then
    return name .. ' is ' .. string.format('%.17g', time)
  end
  return wrong_time(...)
end

-- Returns the values of a row that is only pending. The row begins after `start` bytes. The result is nil and the
-- reason if the row is invalid.
local function unpacked_pending(packed, start)
  local at, since, adds, flags, priority = struct.unpack(PENDING, packed, start + 1)
  if is_time(at) and is_time(since) and is_priority(priority) then
    return at, since, adds, flags, priority
  end
  return nil, wrong_time('at', at, 'since', since) or 'priority is ' .. priority
end

-- Returns the text whose length is at `start`, and the start of the rest. Returns nil if the text is incomplete.
local function take_text(packed, start)
  if #packed < start + 2 then
    return nil
  end
  local rest = start + 2 + struct.unpack('>I2', packed, start + 1)
  if #packed < rest then
    return nil
  end
  return string.sub(packed, start + 3, rest), rest
end

-- Returns the decoded row. The result is nil and the reason if the row is invalid. values.rs implements the same rules.
local function unpacked(packed)
  local size = #packed
  local running = RUNNING_SIZE + (string.byte(packed, RUNNING_SIZE) or 0)
  if size ~= PENDING_SIZE and size ~= running and size < running + EXTRA_SIZE then
    return nil, 'the row has ' .. size .. ' bytes'
  end
  local at, since, adds, flags, priority = unpacked_pending(packed, 0)
  if not at then
    return nil, since
  end
  local row = { at = at, since = since, adds = adds, flags = flags, priority = priority }
  if size > PENDING_SIZE then
    row.epoch, row.lease_until, row.run_since, row.run_adds, row.run_flags, row.run_priority, row.worker =
      struct.unpack(RUN, packed, PENDING_SIZE + 1)
    local wrong = wrong_time(
      'epoch', row.epoch, 'lease_until', row.lease_until, 'run_since', row.run_since
    )
    if wrong or not is_priority(row.run_priority) then
      return nil, wrong or 'run_priority is ' .. row.run_priority
    elseif not is_name(row.worker) or row.epoch == 0 and row.worker ~= '' then
      return nil, 'worker is not valid'
    end
    if size > running then
      row.failures, row.steps, row.backing_off, row.not_before, row.parked, row.bound =
        struct.unpack(EXTRA, packed, running + 1)
      local rest, flag = running + EXTRA_SIZE, row.parked
      if flag < 0 or flag > 7 then
        return nil, 'parked is ' .. flag
      end
      row.parked = flag % 2
      if flag % 4 >= 2 then
        if size < rest + 8 then
          return nil, 'the row has ' .. size .. ' bytes'
        end
        row.failed_at, rest = struct.unpack('>d', packed, rest + 1), rest + 8
      end
      if flag >= 4 then
        row.trace, rest = take_text(packed, rest)
        if rest then
          row.run_trace, rest = take_text(packed, rest)
        end
        if rest then
          row.past, rest = take_text(packed, rest)
        end
        if not rest then
          return nil, 'the row has ' .. size .. ' bytes'
        end
      end
      row.error = string.sub(packed, rest + 1)
      wrong = wrong_time(
        'backing_off', row.backing_off, 'not_before', row.not_before, 'bound', row.bound,
        'failed_at', row.failed_at or 0
      )
      if wrong then
        return nil, wrong
      end
    end
  end
  setmetatable(row, NOTHING)
  if row.at == 0 and row.bound > 0 then
    row.bound = 0
  end
  if row.parked == 1 and (row.at > 0 or row.epoch > 0) then
    return nil, 'the row is parked and has a run'
  elseif row.parked == 0 and row.at == 0 and row.epoch == 0 then
    return nil, 'the row has no state'
  end
  return row
end

local function has_failed(row)
  return row.failures > 0 or row.steps > 0 or row.not_before > 0 or row.parked == 1
end

local function packed(row)
  local has_texts = row.trace ~= '' or row.run_trace ~= '' or row.past ~= ''
  local has_extra = has_failed(row) or row.bound > 0 or has_texts
  if not has_extra and row.epoch == 0 then
    return struct.pack(PENDING, row.at, row.since, row.adds, row.flags, row.priority)
  end
  local running = struct.pack(
    RUNNING, row.at, row.since, row.adds, row.flags, row.priority,
    row.epoch, row.lease_until, row.run_since,
    row.run_adds, row.run_flags, row.run_priority, #row.worker, row.worker
  )
  if not has_extra then
    return running
  end
  local has_time = row.failed_at > 0
  local flag = row.parked + (has_time and 2 or 0) + (has_texts and 4 or 0)
  local texts = has_texts and struct.pack(
    '>I2c0I2c0I2c0', #row.trace, row.trace, #row.run_trace, row.run_trace, #row.past, row.past
  )
  return running .. struct.pack(
    EXTRA, row.failures, row.steps, row.backing_off, row.not_before, flag, row.bound
  ) .. (has_time and struct.pack('>d', row.failed_at) or '') .. (texts or '') .. row.error
end

-- Returns the sorted set that has the key, and the score of the key in it. Returns nothing if the key has no state.
local function place(row)
  if row.parked == 1 then
    -- All parked keys have the same score, so Redis sorts them by the keys themselves.
    return PARKED, 0
  elseif row.epoch > 0 then
    return LEASES, row.lease_until
  elseif row.at > 0 then
    return BANDS[row.priority + 2], row.at
  end
end

-- Returns the due time of the next run of a key in flight, or nil if no run is pending.
local function runs_again(row)
  return row.epoch > 0 and row.at > 0 and row.at or nil
end

-- Returns a function that formats times. The texts are cached, because many keys have the same time.
local function time_format(format)
  local texts = {}
  return function(time)
    local text = texts[time]
    if not text then
      text = string.format(format, time)
      texts[time] = text
    end
    return text
  end
end
local text_of = time_format('%.0f')

-- `group_of` has the groups of the keys that `skip_group` has read, and of new keys. If the queue has no groups, these
-- variables are nil.
local group_of, prefix_of, due_text, turn_of

-- Returns the stored text of each key. The text is false if the key has none.
local function find_texts(keys)
  return redis.call('HMGET', ROWS, unpack(keys))
end

-- Returns the number of bytes that precede the row in the text of a key. If the queue has groups, they are the group
-- and a zero byte.
local function skip_group(key, text)
  if not TURNS then
    return 0
  end
  -- Another client may have written a row without a group.
  local start = string.find(text, '\0', 1, true) or 0
  group_of[key] = start > 0 and string.sub(text, 1, start - 1) or ''
  return start
end

-- Returns the encoded row of each key. The row is false if the key has none.
local function find(keys)
  local texts = find_texts(keys)
  for i = 1, TURNS and #keys or 0 do
    texts[i] = texts[i] and string.sub(texts[i], skip_group(keys[i], texts[i]) + 1)
  end
  return texts
end

local ALL_PLACES = { BANDS[1], BANDS[2], BANDS[3], LEASES, AGAIN, PARKED }

-- Returns true if any key was set aside. In most shards, there is no such key.
local some_aside
local function has_aside()
  if some_aside == nil then
    some_aside = redis.call('ZCARD', ASIDE) > 0
  end
  return some_aside
end

-- Returns true if the key was set aside.
local function is_aside(key)
  return has_aside() and redis.call('ZSCORE', ASIDE, key)
end

if TURNS then
  group_of = {}

  -- The text that precedes the row of a key, by group.
  prefix_of = setmetatable({}, { __index = function(known, group)
    known[group] = group .. '\0'
    return known[group]
  end })

  -- The format of due times in TURNS.
  due_text = time_format('%016.0f')

  -- Returns the member of TURNS for a ready key. The members are ordered by band, group, due time and key.
  function turn_of(band, group, at, key)
    return DIGITS[band] .. group .. '\0' .. due_text(at) .. '\0' .. key
  end
end

-- Sets aside a key whose row cannot be read: the row is kept, but no claim finds the key. Returns false if the key was
-- already set aside. The due time and the group of the key are unknown. Therefore, the key may stay in TURNS until a
-- claim or a repair finds it there. A repair then counts the keys in flight.
local function set_aside(key)
  for _, set in ipairs(ALL_PLACES) do
    redis.call('ZREM', set, key)
  end
  return redis.call('ZADD', ASIDE, 0, key) == 1
end

-- Decodes `text`, which is the row of a key. Returns nil if the row cannot be read.
local function read(key, text)
  local row, why = unpacked(text)
  if not row then
    unreadable[key] = why
    return nil
  end
  if is_aside(key) then
    -- Another client has repaired the row after the key was set aside.
    row.is_misplaced = true
  else
    row.was_in, row.was_at = place(row)
    row.was_again = runs_again(row)
  end
  if row.failures > 0 then
    row.was_failing = true
  end
  rows[key] = row
  return row
end

local function load(keys)
  local texts = find(keys)
  for i = 1, #keys do
    if texts[i] then
      read(keys[i], texts[i])
    end
  end
end

-- Returns the row of a new key.
local function new()
  return setmetatable({ at = 0, since = 0, adds = 0, flags = 0, priority = 0 }, NOTHING)
end

-- Returns a new row for a key, in the place of its unreadable row.
local function replace(key)
  local row = new()
  row.is_misplaced = true
  rows[key] = row
  return row
end

-- Prepares a row that several keys share. The row must not change after this call.
local function share(row)
  row.text = packed(row)
  row.set, row.score = place(row)
end

local function append(lists, set, what)
  local list = lists[set]
  if not list then
    list = {}
    lists[set] = list
  end
  list[#list + 1] = what
end

-- Appends a score and a member to the arguments of ZADD for `set`.
local function append_member(lists, set, score, member)
  local list = lists[set]
  if not list then
    list = {}
    lists[set] = list
  end
  local n = #list
  list[n + 1], list[n + 2] = score, member
end

-- Writes fields of a hash, each followed by its value, and removes other fields.
local function change_hash(hash, written, gone)
  if #written > 0 then
    redis.call('HSET', hash, unpack(written))
  end
  if #gone > 0 then
    redis.call('HDEL', hash, unpack(gone))
  end
end

local BAND_OF, in_flight, settings_of, may_name_groups, wake_for_ready, change_in_flight, move_in_groups
if TURNS then
  -- The numbers of keys in flight of the groups that `read_in_flight` has read.
  in_flight = {}

  -- Makes the number of keys in flight of a group infinite. The group then delivers no key until a repair.
  local function distrust(group)
    in_flight[group], in_flight[DEFAULT] = math.huge, math.huge
    distrust_counts()
  end

  local function read_in_flight(groups)
    if #groups > 0 then
      for i, count in ipairs(redis.call('HMGET', IN_FLIGHT, unpack(groups))) do
        local number = tonumber(count or 0)
        in_flight[groups[i]] = number
        -- Another client may have written any value, even NaN.
        if not number or number < 0 or number % 1 ~= 0 then
          distrust(groups[i])
        end
      end
    end
  end

  -- Returns the weight of each of these groups, and the limit of its keys in flight, or nil if it has none. The limit
  -- of a paused group is 0. Also reads the numbers of keys in flight of the groups that have a limit.
  function settings_of(groups)
    local found = redis.call('HMGET', GROUP_SETTINGS, DEFAULT, unpack(groups))
    local default = tonumber(string.match(found[1] or '', '^%S+'))
    -- The parsed settings are cached, because many groups have the same settings.
    local settings, parsed_as, limited = {}, { [false] = { limit = default, weight = 1 } }, {}
    for i, group in ipairs(groups) do
      local text = found[i + 1]
      if not parsed_as[text] then
        local limit, weight, paused, rate = string.match(text, '^(%S+) (%S+) (%S+) ?(.*)$')
        parsed_as[text] = {
          limit = paused == '1' and 0 or tonumber(limit) or default, weight = tonumber(weight) or 1,
          rate = rate ~= '' and rate, text = text,
        }
      end
      settings[group] = parsed_as[text]
      if settings[group].limit and not in_flight[group] then
        limited[#limited + 1] = group
      end
    end
    read_in_flight(limited)
    return settings
  end

  -- Returns the number of groups for which FREED still has space.
  local MOST_FREED = 64
  local function room_in_freed()
    return MOST_FREED - redis.call('ZCARD', FREED)
  end

  -- Returns true if FREED can name further groups. It must have space, and no search of all groups may be due.
  function may_name_groups()
    return redis.call('ZRANGE', FREED, 0, 0)[1] ~= UNNAMED and room_in_freed() > 0
  end

  -- Wakes a waiting process for these groups, each of which follows its band. The process finds the groups in FREED.
  local function wake_for_groups(members)
    if #members == 0 then
      return
    end
    local put, room = {}, room_in_freed()
    for i = 1, math.min(#members, room) do
      put[2 * i - 1], put[2 * i] = '0', members[i]
    end
    if #members > room then
      put[#put + 1], put[#put + 2] = '0', UNNAMED
    end
    redis.call('ZADD', FREED, unpack(put))
    wake()
  end

  -- Wakes a waiting process for each group that has new ready keys and is below its limit. For a group at its limit,
  -- the process would search all groups and find nothing. `ready` maps each member of FREED to its group.
  function wake_for_ready(ready)
    local groups, members = {}, {}
    for _, group in pairs(ready) do
      groups[#groups + 1] = group
    end
    local settings = settings_of(groups)
    for member, group in pairs(ready) do
      local limit = settings[group].limit
      if not limit or in_flight[group] < limit then
        members[#members + 1] = member
      end
    end
    wake_for_groups(members)
  end

  -- Adds `changes` to the numbers of keys in flight of groups. Wakes a waiting process for each group that was at its
  -- limit and has a ready key.
  function change_in_flight(changes)
    local sum, groups, freed, written, gone, members = 0, { DEFAULT }, {}, {}, {}, {}
    for group, change in pairs(changes) do
      sum, groups[#groups + 1] = sum + change, group
      if change < 0 then
        freed[#freed + 1] = group
      end
    end
    changes[DEFAULT] = sum
    read_in_flight(groups)
    for group, change in pairs(changes) do
      in_flight[group] = in_flight[group] + change
      -- A sum of 0 is also stored, so that a loss of the sum is detected.
      if in_flight[group] == 0 and group ~= DEFAULT then
        gone[#gone + 1] = group
      else
        written[#written + 1] = group
        written[#written + 1] = in_flight[group]
      end
    end
    change_hash(IN_FLIGHT, written, gone)
    for group, settings in pairs(#freed > 0 and settings_of(freed) or {}) do
      local limit = settings.limit
      if limit and limit > 0 and in_flight[group] - changes[group] >= limit then
        for band = 1, 3 do
          if turns_of_group(band, group, 1)[1] then
            members[#members + 1] = DIGITS[band] .. group
          end
        end
      end
    end
    wake_for_groups(members)
  end

  BAND_OF = { [BANDS[1]] = 1, [BANDS[2]] = 2, [BANDS[3]] = 3 }

  -- Moves a key between the sets of a queue with groups. Returns true if its new place is in TURNS instead of `set`.
  function move_in_groups(key, row, set, at, now, put, taken, changes)
    local was_in, was_at, group = row.was_in, row.was_at, group_of[key]
    local band, was_band = BAND_OF[set], BAND_OF[was_in]
    if was_in == set and was_at == at then
      return false
    end
    local is_turn = band and at <= now
    if was_band then
      -- The key was in one of two sets. This function does not know which, so it removes the key from both.
      append(taken, TURNS, turn_of(was_band, group, was_at, key))
      if is_turn and set == was_in then
        append(taken, set, key)
      end
    end
    if is_turn then
      append_member(put, TURNS, '0', turn_of(band, group, at, key))
    end
    local change = (set == LEASES and 1 or 0) - (was_in == LEASES and 1 or 0)
    if change ~= 0 then
      changes[group] = (changes[group] or 0) + change
    end
    return is_turn
  end
end

-- The maximum number of failed runs that a shard keeps.
local MOST_ATTEMPTS = 10000

-- Reads a few failed runs at a random place, and removes the older half of them, if there are too many.
local function trim_attempts(now)
  for step = 1, 64 do
    if redis.call('HLEN', ATTEMPTS) <= MOST_ATTEMPTS then
      return
    end
    local found = redis.call('HSCAN', ATTEMPTS, (now + step * 2654435761) % 4294967296, 'COUNT', 16)[2]
    local some = {}
    for i = 1, #found, 2 do
      some[#some + 1] = { field = found[i], at = tonumber(string.match(found[i + 1], '^%d+')) or 0 }
    end
    table.sort(some, function(a, b) return a.at < b.at end)
    local gone = {}
    for i = 1, math.min(math.ceil(#some / 2), 100) do
      gone[i] = some[i].field
    end
    if #gone > 0 then
      redis.call('HDEL', ATTEMPTS, unpack(gone))
    end
  end
end

-- Writes the rows of `keys`, each of which occurs once. Wakes a waiting process if a key is ready, or is due before all
-- others.
local function keep(keys, now)
  if #keys == 0 then
    return
  end
  local written, gone, put, taken = {}, {}, {}, {}
  -- The failed runs that this call writes, and those that it removes.
  local failed, forgotten = {}, {}
  -- If the queue has groups, `changes` has the changes of the numbers of keys in flight, and `ready` the groups of new
  -- ready keys.
  local changes, ready = {}, nil
  local soonest = NEVER
  -- Records that a key of this group has become ready.
  local function note_ready(band, group)
    if ready == nil then
      ready = may_name_groups() and {}
      if not ready then
        -- A search is faster than reading the settings of all these groups.
        append_member(put, FREED, '0', UNNAMED)
        soonest = now
      end
    end
    if ready then
      ready[DIGITS[band] .. group] = group
    end
  end
  -- Writes a new key that shares its row with other keys.
  local function keep_new(key, row)
    local set, at, n, group = row.set, row.score, #written, nil
    local text, band = row.text, at <= now and BAND_OF and BAND_OF[set]
    if TURNS then
      group = group_of[key]
      text = group .. '\0' .. text
    end
    written[n + 1], written[n + 2] = key, text
    if band then
      append_member(put, TURNS, '0', turn_of(band, group, at, key))
      note_ready(band, group)
    else
      append_member(put, set, text_of(at), key)
      if at < soonest then
        soonest = at
      end
    end
  end
  -- Writes a key that has its own row.
  local function keep_row(key, row)
    local set, at = place(row)
    local text = set and packed(row)
    local was_in = row.was_in
    local is_turn = TURNS and move_in_groups(key, row, set, at, now, put, taken, changes)
    if set then
      local n = #written
      written[n + 1], written[n + 2] = key, TURNS and group_of[key] .. '\0' .. text or text
      if was_in ~= set or row.was_at ~= at then
        if is_turn then
          note_ready(BAND_OF[set], group_of[key])
        else
          append_member(put, set, text_of(at), key)
        end
        if not is_turn and at < soonest and set ~= LEASES and set ~= PARKED then
          soonest = at
        end
      end
    elseif was_in or row.is_misplaced then
      gone[#gone + 1] = key
    end
    if row.is_misplaced then
      for _, other in ipairs(ALL_PLACES) do
        append(taken, other, key)
      end
      append(taken, ASIDE, key)
    end
    if was_in and was_in ~= set then
      append(taken, was_in, key)
    end
    if row.attempt and row.failures > 0 then
      failed[#failed + 1] = row.failures % 3 .. key
      failed[#failed + 1] = row.attempt
    elseif row.was_failing and (row.failures == 0 or not set) then
      for slot = 0, 2 do
        forgotten[#forgotten + 1] = slot .. key
      end
    end
    local again = runs_again(row)
    if again and again ~= row.was_again then
      append_member(put, AGAIN, text_of(again), key)
    elseif row.was_again and not again then
      append(taken, AGAIN, key)
    end
  end
  for i = 1, #keys do
    local key = keys[i]
    local row = rows[key]
    if row.text then
      keep_new(key, row)
    else
      keep_row(key, row)
    end
  end
  local wakes = soonest <= now or soonest < NEVER and soonest < next_due()
  change_hash(ROWS, written, gone)
  change_hash(ATTEMPTS, failed, forgotten)
  if #failed > 0 then
    trim_attempts(now)
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
  if TURNS then
    if ready then
      wake_for_ready(ready)
    end
    if next(changes) then
      change_in_flight(changes)
    end
  end
end

local function after(now, delay)
  return math.min(now + delay, NEVER)
end

-- Returns true if a run is pending and due.
local function is_dirty(row, now)
  return row.at > 0 and row.at <= now
end

-- Returns the name of the state of a row.
local function state_of(row, now)
  return row.parked == 1 and 'parked' or row.epoch > 0 and 'in_flight' or is_dirty(row, now) and 'ready' or 'waiting'
end

local MOST = 4294967295

local function note(row, asked)
  if row.at > 0 then
    row.priority = math.max(row.priority, asked.priority)
  else
    row.priority = asked.priority
  end
  row.adds = math.min(row.adds + asked.adds, MOST)
  row.flags = bit.bor(row.flags, asked.flags) % 4294967296
end

local function unbind(row)
  if row.bound > 0 then
    row.bound = 0
  end
end

local function forget(row)
  if has_failed(row) then
    row.failures, row.steps, row.backing_off, row.not_before, row.error, row.failed_at = 0, 0, 0, 0, '', 0
  end
end

-- The maximum length, in bytes, of the trace contexts of a run.
local MOST_TRACE = 1024

-- Sets the trace contexts of the pending run: see `join_traces` in row.rs. Most adds have no trace context.
local function join_traces(row, earlier, later)
  if earlier == '' or later == '' then
    if row.trace ~= earlier .. later then
      row.trace = earlier .. later
    end
  else
    row.trace = #earlier + #later < MOST_TRACE and earlier .. '\n' .. later or earlier
  end
end

local function take_back(row)
  forget(row)
  if row.trace ~= '' then
    row.trace = ''
  end
  row.at, row.adds, row.flags = 0, 0, 0
  unbind(row)
  if row.parked == 1 then
    row.parked = 0
  end
end

-- Returns the latest time to which a debounced add can postpone the pending run.
local function latest(row)
  return row.bound > 0 and row.bound or row.at > 0 and row.at or NEVER
end

-- Requests a run at the time `at`. Only a debounced add has a `bound`. Returns the outcome, in the form of `Added`: 0
-- for New, 1 for Coalesced, and 2 for Dirty.
local function demand(row, at, merge, now, bound)
  if is_dirty(row, now) then
    return 1
  elseif at <= now then
    if row.not_before > 0 then
      row.not_before = 0
    end
    row.at, row.since = now, now
    unbind(row)
    return row.epoch > 0 and 2 or 0
  end
  local answer = 0
  if row.at > 0 then
    answer = 1
    if bound then
      bound = math.min(bound, latest(row))
    elseif merge == 'earliest' then
      bound = row.bound > 0 and math.min(row.bound, at)
      at = math.min(row.at, at)
    elseif merge == 'latest' and at <= row.at then
      bound, at = row.bound, row.at
    end
  end
  row.at, row.since = at, at
  if bound and bound ~= at then
    row.bound = bound
  else
    unbind(row)
  end
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

-- Counts a failure. `failure` has the duration of the run, or a dash if it is the time since the claim. The exit
-- status, or a dash, and the length of the error follow. The error and the output are at the end.
local function fail(row, how, failure, hold, now)
  local took, status, size, from = string.match(failure, '^(%S+) (%S+) (%d+) ()')
  row.failures = math.min(row.failures + 1, MOST)
  row.error, row.failed_at = string.sub(failure, from, from + size - 1), now
  -- values.rs reads the same encoding.
  row.attempt = string.format(
    '%.0f %.0f %.0f %s %d %s ', now, row.failures, tonumber(took) or math.max(now - row.run_since, 0), status,
    #row.worker, size
  ) .. row.worker .. string.sub(failure, from)
  note(row, how)
  local delay
  if how.what == 'retry' then
    delay = back_off(row, how, now)
  elseif how.what == 'retry_after' then
    delay = how.delay
  end
  if not delay or row.failures >= how.most then
    if row.at > 0 then
      -- The key was added during the run, so its failures are reset.
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
      -- One run serves both the retry and the adds during the failed run.
      row.at = math.max(row.at, at)
      row.since = row.at
      unbind(row)
    end
  end
  demand(row, at, 'earliest', now)
end

-- True if completions add their runs to the past of a key that stays.
local keeps_past

-- Reads the settings of completions. The number is 1 if re-adds are held, and 2 is added for `keeps_past`. Returns true
-- if re-adds are held.
local function read_flags(flags)
  keeps_past = tonumber(flags) >= 2
  return flags % 2 == 1
end

-- Encodes a whole number in LEB128.
local function leb128(number)
  local bytes = ''
  while number >= 128 do
    bytes = bytes .. string.char(number % 128 + 128)
    number = math.floor(number / 128)
  end
  return bytes .. string.char(number)
end

-- The digits for the ways in which a run can end: see past.rs.
local WAYS = { succeed = 0, requeue_after = 1, release = 4, cancelled = 5 }
-- The maximum length of a past, in bytes.
local MOST_PAST = 64

-- Returns the past of a key, including the run that ends now, in the form of past.rs. `was` has the values of the row
-- before the completion.
local function with_run(was, row, what, took, now)
  local digit = WAYS[what] or row.parked == 1 and 3 or row.failures == 0 and 6 or 2
  if was.lease_until <= now then
    digit = digit + 8
  end
  took = took or math.max(now - was.run_since, 0)
  local ended, between = math.floor(now / 1000), ''
  if #row.past >= 6 then
    local high, low = struct.unpack('>I2I4', row.past)
    between = leb128(math.max(ended - high * 4294967296 - low, 0)) .. string.sub(row.past, 7)
  end
  -- If the key was added during the run, the add has overwritten the time at which the key became ready.
  local queued = was.since <= was.run_since and math.floor(math.max(now - took - was.since, 0) / 1000) + 1 or 0
  local past = struct.pack('>I2I4', math.floor(ended / 4294967296), ended % 4294967296)
    .. leb128(was.run_adds * 16 + digit) .. leb128(math.floor(took / 1000)) .. leb128(queued) .. between
  return string.sub(past, 1, MOST_PAST)
end

-- Completes a delivery.
local function finish(row, how, failure, hold, now)
  local place
  if how.adds == 0 then
    -- The process that completes the delivery may not have claimed the key, so the stored parameters are used: see
    -- `Asked`.
    how = setmetatable({ adds = row.run_adds, flags = row.run_flags, priority = row.run_priority }, { __index = how })
  end
  -- The run of an unclaimed key has not started, so the past does not include it.
  local was = keeps_past and how.what ~= 'unclaim' and not how.is_unclaimed and {
    since = row.since, run_since = row.run_since, run_adds = row.run_adds, lease_until = row.lease_until,
  }
  if how.what == 'succeed' or how.what == 'requeue_after' then
    forget(row)
  elseif how.what == 'release' then
    note(row, how)
    demand(row, math.max(row.not_before, now), 'earliest', now)
  elseif how.what == 'unclaim' then
    note(row, how)
    place = math.max(row.run_since - how.delay, 1)
  elseif how.what ~= 'cancelled' then
    fail(row, how, failure, hold, now)
  end
  row.epoch, row.lease_until, row.run_since = 0, 0, 0
  row.run_adds, row.run_flags, row.run_priority, row.worker = 0, 0, 0, ''
  if row.run_trace ~= '' then
    if how.what ~= 'succeed' and how.what ~= 'requeue_after' and how.what ~= 'cancelled' then
      join_traces(row, row.run_trace, row.trace)
    end
    row.run_trace = ''
  end
  if place then
    -- Adds during the delivery are coalesced, as for any ready key.
    row.at, row.since = place, place
    unbind(row)
  elseif is_dirty(row, now) then
    -- The key becomes the last of the ready keys. `since` remains the time of the add.
    row.at = now
    unbind(row)
  end
  if how.what == 'requeue_after' then
    note(row, how)
    demand(row, after(now, how.delay), 'earliest', now)
  end
  if was and (row.at > 0 or row.parked == 1) then
    row.past = with_run(was, row, how.what, tonumber(string.match(failure, '^%d+')), now)
  end
end

-- Returns the keys among `keys` that are in flight with a cancelled run. Their rows must have been read.
local function cancelled_of(keys)
  local cancelled = {}
  if #keys > 0 and redis.call('HLEN', CANCELLED) > 0 then
    for i, epoch in ipairs(redis.call('HMGET', CANCELLED, unpack(keys))) do
      local row = rows[keys[i]]
      cancelled[keys[i]] = epoch and row and row.epoch > 0 and row.epoch == tonumber(epoch)
    end
  end
  return cancelled
end

-- Returns true if the delivery with this fencing token has a lease that has not expired.
local function is_held(row, epoch, now)
  return row and row.epoch > 0 and row.epoch == epoch and row.lease_until > now
end

-- Parses the words of `spec` into a table with these names. The tables are cached, because most specs of a batch are
-- equal.
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

-- Returns the keys among the arguments: each `step`-th argument, beginning with the second.
local function keys_given(step)
  local keys = {}
  for i = 2, #ARGV, step do
    keys[#keys + 1] = ARGV[i]
  end
  return keys
end

local ENDS = { 'what', 'adds', 'flags', 'priority', 'most', 'delay', 'cap', 'share' }
