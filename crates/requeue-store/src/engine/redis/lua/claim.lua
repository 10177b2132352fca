-- Claims keys, or only handles expired leases if the queue is paused. The arguments are, in this order:
--
-- - the maximum number of keys, and how many of them are the oldest ones
-- - the lease
-- - the settings: see `read_flags`
-- - the failure parameters for expired leases
-- - the number of shards of the queue
-- - the name of the worker
-- - if the queue has groups, the rounds: see turns.lua
--
-- The answer has, in this order:
--
-- - the time of the claim
-- - the time until the next key may be ready, or false if this time is unknown or there is none
-- - 1 if the shard is damaged
-- - the number of places that were dropped because they had no row
-- - the sum of three flags: 1 if the queue is paused, 2 if the queue or a visited group has a rate, and 4 if the next
--   claims must search all groups
-- - the time until a schedule is due, or false
-- - the keys that were set aside, each with the reason
-- - the keys that were parked, each with its failures
-- - the claimed keys, each with a packed string, and with its group if the queue has groups
-- - the visited groups, unless no group was visited
--
-- The packed string has the epoch, adds, flags, priority, failures, and the time for which the key was ready. If the
-- key has failed or has trace contexts, two values follow: the time since the failure plus 1, or 0, and the contexts.
-- values.rs reads the answer.
local HAND_OUT = '>dI4I4bI4d'
local at, max, oldest = now(), tonumber(ARGV[1]), tonumber(ARGV[2])
local lease_until, hold, worker = after(at, tonumber(ARGV[3])), read_flags(ARGV[4]), ARGV[7]
local is_paused, schedule_at, rate = standing()
local gate, asked = not is_paused and rate and parse_gate(rate, at), max
if gate then
  max = permitted(gate, at, max)
  oldest = math.min(oldest, max)
end
if is_paused then
  max = 0
end

-- Removes the places of a key whose row another client has deleted. The key may have been added again since then.
local removed, is_odd = 0, false
local function remove(key, ...)
  is_odd = true
  for _, set in ipairs({ ... }) do
    removed = removed + redis.call('ZREM', set, key)
  end
end

-- The keys that were set aside, each followed by the reason.
local aside = {}
local function put_aside(key, why)
  if set_aside(key) then
    aside[#aside + 1] = key
    aside[#aside + 1] = why
  end
end

-- The keys that were parked because their expired lease was the last permitted failure. Each is followed by its
-- failures.
local parked = {}
local expired = redis.call('ZRANGEBYSCORE', LEASES, '-inf', at, 'LIMIT', 0, 256)
if #expired > 0 then
  local failing, failed = parsed(ARGV[5], ENDS), {}
  local texts = find(expired)
  for i, text in ipairs(texts) do
    if text then
      read(expired[i], text)
    end
  end
  local cancelled = cancelled_of(expired)
  for i in ipairs(texts) do
    local key = expired[i]
    local row = rows[key]
    if unreadable[key] then
      put_aside(key, unreadable[key])
    elseif row and row.epoch > 0 then
      local n = #failed + 1
      local how = setmetatable({
        adds = row.run_adds, flags = row.run_flags, priority = row.run_priority,
        -- If several keys fail at the same time, they must not become ready at the same time: see `Failing::nth`.
        share = 1 - (1 - failing.share) * n % 1,
        what = cancelled[key] and 'cancelled' or nil,
      }, { __index = failing })
      finish(row, how, '- - 17 the lease expired', hold, at)
      failed[n] = key
      if row.parked == 1 then
        parked[#parked + 1] = key
        parked[#parked + 1] = row.failures
      end
    else
      remove(key, LEASES)
      redis.call('ZREM', AGAIN, key)
    end
  end
  keep(failed, at)
end

-- Returns the ready keys of each priority. `...` has options of ZRANGEBYSCORE, which may limit the number of keys or
-- add their times.
local function ready_keys(...)
  local ready, some = {}, {}
  for band, set in ipairs(BANDS) do
    ready[band] = redis.call('ZRANGEBYSCORE', set, '-inf', at, ...)
    if #ready[band] > 0 then
      some[#some + 1] = ready[band]
    end
  end
  return ready, some
end

-- If the queue has groups, `members` has the claimed keys' members of TURNS, and `groups` has the groups of the keys.
local members, groups, visited, has_more
local is_stalled = is_paused
if TURNS and not is_paused and is_miscounted() then
  -- The repair must first count the keys in flight. Without correct numbers, a claim cannot enforce limits, so it
  -- delivers no key.
  is_odd, is_stalled, max = true, true, 0
end

local ready, some, keys
if TURNS then
  keys, some, members, groups = {}, {}, {}, {}
  -- If the rate of the queue permits no start, the claim visits no group.
  if not is_stalled and max > 0 then
    keys, members, groups, visited, has_more = choose_by_turns(at, max, oldest, ARGV, 8)
  end
else
  ready, some = ready_keys('LIMIT', 0, max)
  keys = some[1] or {}
end
if #some > 1 then
  keys, ready = {}, ready_keys('WITHSCORES', 'LIMIT', 0, max)
  local heads = { 1, 1, 1 }
  for n = 1, max do
    local best
    for band = 3, 1, -1 do
      local score = tonumber(ready[band][heads[band] + 1])
      if score and (not best or n <= oldest and score < tonumber(ready[best][heads[best] + 1])) then
        best = band
      end
    end
    if not best then
      break
    end
    keys[n] = ready[best][heads[best]]
    heads[best] = heads[best] + 2
  end
end

-- The claimed keys, each followed by the parameters of its run.
local delivered = {}
if #keys > 0 then
  -- Each fencing token is greater than the last token. If the last token was lost, the next token is greater because of
  -- the clock. The token of the queue is the token of the shard times the number of shards. Therefore, the unit of the
  -- shard's token is that number of microseconds. With a unit of one microsecond, the token of the queue could exceed
  -- 2^53, the limit of exact integers in a double.
  local epoch = last_epoch()
  local least = math.ceil(at / tonumber(ARGV[6]))
  local written, leased, taken, changed, started = {}, {}, {}, {}, {}
  local leased_until, some_are_aside = text_of(lease_until), has_aside()
  -- These functions have local names, because Lua looks up global names slowly.
  local byte, larger, pack, sub = string.byte, math.max, struct.pack, string.sub
  -- If a key is in several sets, it is delivered once.
  local given = (TURNS or #some > 1) and {}
  -- Removes the place of a key that is not ready at this place.
  local function remove_place(key, member)
    if member then
      is_odd, removed = true, removed + 1
    else
      remove(key, BANDS[1], BANDS[2], BANDS[3])
    end
  end
  -- Returns true if the row of a key has another place than this member of TURNS. '2' is the byte 50.
  local function is_misplaced(member, group, priority, due)
    return not group or byte(member) ~= priority + 50
      or sub(member, #group + 3, #group + 18) ~= due_text(due)
  end
  local texts = find_texts(keys)
  for i = 1, #keys do
    local key, text, since, adds, flags, priority, failures = keys[i], texts[i], nil, nil, nil, nil, 0
    local more = ''
    local start, prefix, member, group = 0, '', nil, nil
    if TURNS then
      member, group = members[i], groups[i]
      prefix = prefix_of[group]
      start = #prefix
      if text and sub(text, 1, start) ~= prefix then
        -- The row has another group than the member, so this is not its place.
        start, group = skip_group(key, text), nil
      end
    end
    if given and given[key] then
      is_odd = true
      if member then
        remove_place(key, member)
      end
    elseif not text then
      remove_place(key, member)
    elseif #text == start + PENDING_SIZE and not (some_are_aside and is_aside(key)) then
      -- In the most common case, the key is only pending.
      local due
      due, since, adds, flags, priority = unpacked_pending(text, start)
      if not due or due == 0 then
        put_aside(key, due and 'the row has no state' or since)
        since = nil
      elseif member and is_misplaced(member, group, priority, due) then
        remove_place(key, member)
        since = nil
      else
        epoch = larger(epoch + 1, least)
        adds = larger(adds, 1)
        local n = #written
        written[n + 1], written[n + 2] = key, pack(
          STORED_RUNNING, prefix, 0, since, 0, 0, priority, epoch, lease_until, at, adds, flags, priority,
          #worker, worker
        )
        leased[n + 1], leased[n + 2] = leased_until, key
        if group then
          started[group] = (started[group] or 0) + 1
        else
          append(taken, BANDS[priority + 2], key)
        end
      end
    else
      local row = read(key, string.sub(text, start + 1))
      if not row then
        put_aside(key, unreadable[key])
      elseif row.epoch > 0 or row.parked == 1
        or member and is_misplaced(member, group, row.priority, row.at) then
        -- The key is not ready. This place remains from an earlier row.
        remove_place(key, member)
      else
        epoch = math.max(epoch + 1, least)
        row.epoch, row.lease_until, row.run_since = epoch, lease_until, at
        row.run_adds, row.run_flags = math.max(row.adds, 1), row.flags
        row.run_priority, row.worker = row.priority, worker
        row.at, row.adds, row.flags = 0, 0, 0
        unbind(row)
        if row.not_before > 0 then
          row.not_before = 0
        end
        changed[#changed + 1] = key
        if group then
          group_of[key] = group
        end
        since, adds, flags = row.since, row.run_adds, row.run_flags
        priority, failures = row.run_priority, row.failures
        if row.trace ~= '' then
          row.run_trace, row.trace = row.trace, ''
        end
        local failed = failures > 0 and row.failed_at > 0 and larger(at - row.failed_at, 0) + 1 or 0
        if failed > 0 or row.run_trace ~= '' then
          more = pack('>d', failed) .. row.run_trace
        end
      end
    end
    if given then
      given[key] = true
    end
    if since then
      local queued = larger(at - since, 0)
      local n = #delivered
      delivered[n + 1], delivered[n + 3] = key, group
      delivered[n + 2] = pack(HAND_OUT, epoch, adds, flags, priority, failures, queued) .. more
    end
  end
  if TURNS then
    remove_chosen()
  end
  keep(changed, at)
  redis.call('SET', EPOCH, epoch)
  if #written > 0 then
    redis.call('HSET', ROWS, unpack(written))
    for set, list in pairs(taken) do
      redis.call('ZREM', set, unpack(list))
    end
    redis.call('ZADD', LEASES, unpack(leased))
    if next(started) then
      change_in_flight(started)
    end
  end
end
local count = #delivered / (TURNS and 3 or 2)
local is_rated = gate and true or false
if gate then
  local text = text_of_gate(gate, at, count)
  if count > 0 or gate.is_changed then
    keep_standing(false, schedule_at, text)
  end
end
if TURNS and not is_stalled then
  is_rated = keep_gates(delivered, at) or is_rated
end
local due, next_in = is_stalled and NEVER or next_due(), false
if gate and not is_stalled and count == max and max < asked then
  if redis.call('HLEN', ROWS) > redis.call('ZCARD', PARKED) + redis.call('ZCARD', ASIDE) then
    next_in = math.max(gate.next_at - at, 0)
    if max > 0 then
      -- This worker may ask for no further key for some time. Therefore, another worker must claim the next key.
      wake()
    end
  end
elseif not is_stalled and count == max then
  if due <= at or has_more then
    -- More keys are ready, so another worker is woken to claim them.
    wake()
  end
else
  local next = math.min(due, first(LEASES), TURNS and next_by_rates() or NEVER)
  if TURNS and not is_stalled and (#delivered < 3 * #keys or redis.call('ZCARD', FREED) > 0) then
    -- Either a key that cannot be delivered has taken the place of another key, or this claim has not visited all
    -- changed groups.
    next = at
  end
  next_in = next < NEVER and math.max(next - at, 0)
end
local damaged = is_odd or #delivered == 0 and is_damaged()
local schedule_in = schedule_at and math.max(schedule_at - at, 0) or false
local flags = (is_paused and 1 or 0) + (is_rated and 2 or 0) + (TURNS and needs_search() and 4 or 0)
return { at, next_in, damaged and 1 or 0, removed, flags, schedule_in, aside, parked, delivered, visited }
