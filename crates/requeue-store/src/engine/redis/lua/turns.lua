-- Chooses the keys of a claim in the order of turns. engine/sqlite/turns.rs is the reference. Queues without groups do
-- not use this file.
local choose_by_turns, remove_chosen, keep_gates, next_by_rates, needs_search
if TURNS then
  -- The maximum number of due keys of each priority that one claim moves from BANDS to TURNS.
  local MOVED = 256
  local function move_due(at)
    for band, set in ipairs(BANDS) do
      local due = redis.call('ZRANGEBYSCORE', set, '-inf', at, 'WITHSCORES', 'LIMIT', 0, MOVED)
      if #due > 0 then
        local keys, members = {}, {}
        for i = 1, #due, 2 do
          keys[#keys + 1] = due[i]
        end
        -- If a key has no row, it is moved nevertheless. A claim then removes it from TURNS.
        find(keys)
        for i, key in ipairs(keys) do
          members[2 * i - 1], members[2 * i] = '0', turn_of(band, group_of[key] or '', tonumber(due[2 * i]), key)
        end
        redis.call('ZREM', set, unpack(keys))
        redis.call('ZADD', TURNS, unpack(members))
      end
    end
  end

  -- Parses the rounds of the bands. A round has the group after which the lookup begins, after a dot, or an empty text.
  -- The number of groups to look up and the number of groups that are visited first follow. These groups are at the
  -- end, each with the number of keys that it has received in its turn.
  local function parse_rounds(words, i)
    local rounds = {}
    for band = 1, 3 do
      local after, count = words[i], tonumber(words[i + 2])
      rounds[band] = { after = after ~= '' and string.sub(after, 2) or nil, more = tonumber(words[i + 1]), first = {} }
      i = i + 3
      for n = 1, count do
        rounds[band].first[n] = { group = words[i], used = tonumber(words[i + 1]), is_first = true }
        i = i + 2
      end
    end
    return rounds
  end

  -- Returns the groups that have ready keys of a band. The groups after `round.after` come first, sorted by name, and
  -- the other groups follow.
  local function look_up_groups(band, round)
    local found, after, before = {}, round.after, nil
    while #found < round.more do
      local member = next_turn(band, after, before)
      if member then
        local _, group = parse_turn(member)
        found[#found + 1], after = group, group
      elseif round.after and not before then
        after, before = nil, round.after
      else
        break
      end
    end
    return found
  end

  -- The gates of the groups that have rates and may deliver, and the texts of their settings.
  local gates, texts = {}, {}

  local function gate_of_group(group, settings, at)
    if not gates[group] then
      gates[group], texts[group] = parse_gate(settings.rate, at), settings.text
    end
    return gates[group]
  end

  -- The earliest time at which a rate permits the start of a ready key that it now holds back.
  local next_at = NEVER

  -- Returns how many keys the rate of a group permits to start now, up to `wanted`.
  local function permitted_by_rate(turn, at, wanted)
    if not turn.gate then
      return wanted
    end
    local most = permitted(turn.gate, at, wanted)
    turn.gate.is_cut = turn.gate.is_cut or most < wanted
    return most
  end

  -- Records the delivered keys in the gates of their groups. `delivered` has three values for each key, and the last of
  -- them is the group. After this call, the times of the next starts are known.
  function keep_gates(delivered, at)
    if not next(gates) then
      return false
    end
    local starts = {}
    for i = 3, #delivered, 3 do
      starts[delivered[i]] = (starts[delivered[i]] or 0) + 1
    end
    for group, gate in pairs(gates) do
      local count = starts[group] or 0
      local text = text_of_gate(gate, at, count)
      if count > 0 or gate.is_changed then
        local limit, weight, paused = string.match(texts[group], '^(%S+) (%S+) (%S+)')
        redis.call('HSET', GROUP_SETTINGS, group, limit .. ' ' .. weight .. ' ' .. paused .. ' ' .. text)
      end
      if gate.is_cut and gate.next_at > at then
        next_at = math.min(next_at, gate.next_at)
      end
    end
    return true
  end

  function next_by_rates()
    return next_at
  end

  -- The number of keys in flight of each group that has a limit. It includes the keys that this claim takes.
  local running = {}

  -- Returns how many keys the limit and the rate of the group permit to start now, up to `wanted`.
  local function room_of(turn, at, wanted)
    wanted = permitted_by_rate(turn, at, wanted)
    if not turn.limit then
      return wanted
    end
    running[turn.group] = running[turn.group] or in_flight[turn.group]
    return math.max(math.min(wanted, turn.limit - running[turn.group]), 0)
  end

  -- The number of groups of the ring that one claim visits, as in engine/turns.rs.
  local VISITED = 8

  local function append_all(list, more)
    for _, value in ipairs(more) do
      list[#list + 1] = value
    end
  end

  -- True if groups that FREED does not contain may be able to deliver a key.
  local is_search_needed = false

  function needs_search()
    return is_search_needed
  end

  -- Takes changed groups from FREED if the ring has too few groups for the claim. Returns the groups of each band.
  local function take_freed(rounds)
    local freed, count = { {}, {}, {} }, VISITED
    for _, round in ipairs(rounds) do
      count = count - #round.first
    end
    local found = count > 0 and redis.call('ZRANGE', FREED, 0, count - 1) or {}
    if #found > 0 then
      redis.call('ZREM', FREED, unpack(found))
    end
    for _, member in ipairs(found) do
      is_search_needed = is_search_needed or member == UNNAMED
      local band = freed[tonumber(string.sub(member, 1, 1))]
      if band then
        band[#band + 1] = string.sub(member, 2)
      end
    end
    return freed
  end

  -- Returns the groups of each band that may deliver keys, with their settings. Also returns the progress of the
  -- lookup.
  local function find_candidates(rounds, at)
    local bands, visited, all, names = {}, {}, {}, {}
    local freed = take_freed(rounds)
    for band, round in ipairs(rounds) do
      local found = look_up_groups(band, round)
      local is_complete = #found < round.more
      visited[band] = { is_complete = is_complete, cursor = not is_complete and found[#found] or false }
      local candidates, known = round.first, {}
      for _, turn in ipairs(candidates) do
        known[turn.group] = true
      end
      append_all(freed[band], found)
      for _, group in ipairs(freed[band]) do
        if not known[group] then
          known[group] = true
          candidates[#candidates + 1] = { group = group, used = 0 }
        end
      end
      bands[band] = candidates
      for _, turn in ipairs(candidates) do
        if not all[turn.group] then
          all[turn.group] = true
          names[#names + 1] = turn.group
        end
      end
    end
    local settings = #names > 0 and settings_of(names) or {}
    for band, candidates in ipairs(bands) do
      local open = {}
      for _, turn in ipairs(candidates) do
        turn.weight, turn.limit = settings[turn.group].weight, settings[turn.group].limit
        turn.gate = settings[turn.group].rate and gate_of_group(turn.group, settings[turn.group], at)
        -- While its limit or rate permits no key, a group that was looked up must not take a place in the ring.
        if turn.limit ~= 0 and (turn.is_first or room_of(turn, at, 1) > 0) then
          open[#open + 1] = turn
        end
      end
      bands[band] = open
    end
    return bands, visited
  end

  -- Returns the band of the oldest key, among the first ready keys of these groups. Returns nil if only one band has
  -- groups.
  local function oldest_band(bands, at)
    local some = 0
    for _, candidates in ipairs(bands) do
      some = some + (#candidates > 0 and 1 or 0)
    end
    local oldest, oldest_at = nil, nil
    for band, candidates in ipairs(some > 1 and bands or {}) do
      for _, turn in ipairs(candidates) do
        local head = room_of(turn, at, 1) > 0 and turns_of_group(band, turn.group, 1)[1]
        local _, _, at = parse_turn(head or '')
        if at and (not oldest_at or at < oldest_at) then
          oldest, oldest_at = band, at
        end
      end
    end
    return oldest
  end

  -- The first and the last member of TURNS of each visit.
  local ranges = {}

  -- Removes the chosen keys from TURNS. A claim also removes chosen keys that it does not deliver.
  function remove_chosen()
    for i = 1, #ranges, 2 do
      redis.call('ZREMRANGEBYLEX', TURNS, '[' .. ranges[i], '[' .. ranges[i + 1])
    end
  end

  -- The chosen keys, their members of TURNS, and their groups.
  local keys, members, groups = {}, {}, {}

  -- Chooses up to `most` ready keys of a band, in the order of the turns of `candidates`. Returns the groups that may
  -- have more keys. In the result, `is_first` is true for groups whose turns are not over.
  local function visit_groups(band, candidates, most, at)
    local sum, used = 0, 0
    for i = 1, math.min(#candidates, VISITED) do
      sum, used = sum + candidates[i].weight, used + candidates[i].used
    end
    local each = math.max(math.ceil((most + used) / math.max(sum, 1)), 1)
    local visits, count, open, over = {}, 0, {}, {}
    for _, turn in ipairs(candidates) do
      local wanted = most - count
      if wanted == 0 then
        open[#open + 1] = turn
      else
        local length = math.max(each * turn.weight - turn.used, 1)
        wanted = math.min(wanted, length)
        local room = room_of(turn, at, wanted)
        local found = room > 0 and turns_of_group(band, turn.group, room, turn.after) or {}
        if #found > 0 then
          ranges[#ranges + 1] = found[1]
          ranges[#ranges + 1] = found[#found]
          visits[#visits + 1] = {
            found = found, count = #found, group = turn.group, from = start_of_key(turn.group),
            weight = turn.weight, given = 0, used = turn.used,
          }
        end
        count = count + #found
        if turn.gate then
          turn.gate.used = turn.gate.used + #found
        end
        if turn.limit then
          running[turn.group] = running[turn.group] + #found
        end
        if #found == wanted then
          -- The claim may be full before the group's turn is over.
          turn.is_first = #found < length
          turn.used = turn.is_first and turn.used + #found or 0
          turn.after = found[#found]
          local list = turn.is_first and open or over
          list[#list + 1] = turn
        end
      end
    end
    -- A claim may visit a band again. In this case, no group may have two consecutive turns.
    for _, turn in ipairs(over) do
      open[#open + 1] = turn
    end
    -- Workers take the keys of a claim in this order. In each turn, a group delivers as many keys as its weight.
    local number, chosen, all, sub = 0, #keys, #keys + count, string.sub
    while chosen < all do
      number = number + 1
      for i = 1, #visits do
        local visit = visits[i]
        local given, last = visit.given, number * visit.weight - visit.used
        if last > visit.count then
          last = visit.count
        end
        for n = given + 1, last do
          local member = visit.found[n]
          chosen = chosen + 1
          keys[chosen], members[chosen], groups[chosen] = sub(member, visit.from), member, visit.group
          visit.given = n
        end
      end
    end
    return open
  end

  -- Repeats `visit_groups` until `most` keys are chosen, or until no visited group can deliver another key.
  local function visit_band(band, candidates, most, at)
    local before
    repeat
      before = #keys
      candidates = visit_groups(band, candidates, most - before, at)
    until #keys == before or #keys == most or #candidates == 0
    return candidates
  end

  -- Returns the keys that a claim delivers, their members of TURNS, and their groups. Also returns the progress of each
  -- band, and true if there may be more keys. The progress of a band has four parts:
  --
  -- - the groups whose turns come next, each with the number of keys that it has received
  -- - the groups that follow in the ring
  -- - the last group that was looked up
  -- - 1 if all groups were looked up
  function choose_by_turns(at, max, oldest, words, first_word)
    move_due(at)
    local bands, visited = find_candidates(parse_rounds(words, first_word), at)
    local aging = oldest > 0 and oldest_band(bands, at)
    if aging then
      bands[aging] = visit_band(aging, bands[aging], math.min(oldest, max), at)
    end
    for band = 3, 1, -1 do
      bands[band] = visit_band(band, bands[band], max, at)
    end
    local answer, has_more = {}, false
    for band, open in ipairs(bands) do
      local next, last = {}, {}
      for _, turn in ipairs(open) do
        if turn.is_first then
          next[#next + 1], next[#next + 2] = turn.group, turn.used
        else
          last[#last + 1] = turn.group
        end
      end
      answer[band] = { next, last, visited[band].cursor, visited[band].is_complete and 1 or 0 }
      has_more = has_more or #open > 0 or not visited[band].is_complete
    end
    return keys, members, groups, answer, has_more or redis.call('ZCARD', FREED) > 0
  end
end
