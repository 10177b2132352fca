-- Adds keys. The first argument is 1 if re-adds are held. For each add, the key and the encoded parameters follow, and
-- its group if the queue has groups. The trace context of an add is in a second line of its parameters. If there is a
-- receipt, two more arguments follow: the number of the batch, and the time in milliseconds for which to keep the
-- receipt.
--
-- Answers with one digit for each add. The digit is the outcome, or 7 if a new key has replaced an unreadable row that
-- was not set aside.

-- A receipt has the number of a batch and its answers. A batch whose receipt exists was already added, so it adds
-- nothing.
local RECEIPT, lasts, number = (#KEYS == 15 or #KEYS == 19) and KEYS[#KEYS], nil, nil
local function record(receipt)
  redis.call('SET', RECEIPT, receipt, 'PX', lasts)
end
if RECEIPT then
  lasts, number = table.remove(ARGV), table.remove(ARGV)
  local receipt = redis.call('GET', RECEIPT)
  if receipt and string.sub(receipt, 1, #number + 1) == number .. ' ' then
    -- Because of this write, `WAIT` also waits for the writes of the first attempt.
    record(receipt)
    return string.sub(receipt, #number + 2)
  end
end

-- `most` is the longest wait of a debounced add. Other adds do not have it.
local ASKS = { 'delay', 'merge', 'adds', 'flags', 'priority', 'revives', 'most' }
local at, hold = now(), ARGV[1] == '1'
-- If the queue has groups, a third argument for each add is its group.
local step = TURNS and 3 or 2
local keys, changed, answers = keys_given(step), {}, {}
load(keys)

-- Applies an add to a row. Returns the outcome.
local function add(row, said)
  local ask, trace = said, ''
  local middle = string.find(said, '\n', 1, true)
  if middle then
    ask, trace = string.sub(said, 1, middle - 1), string.sub(said, middle + 1)
  end
  ask = parsed(ask, ASKS)
  local was_parked = row.parked == 1
  if was_parked and ask.revives == 0 then
    return 4
  end
  if was_parked or ask.merge == 'exactly' then
    take_back(row)
  end
  note(row, ask)
  join_traces(row, row.trace, trace)
  local wanted, bound = after(at, ask.delay), ask.most and after(at, ask.most)
  if bound then
    wanted = math.min(wanted, latest(row))
  end
  local due = wanted
  if hold and not (row.epoch == 0 and is_dirty(row, at)) then
    due = math.max(wanted, row.not_before)
  end
  local answer = demand(row, due, ask.merge, at, bound)
  return was_parked and 6 or due > wanted and 3 or answer
end

-- New keys with the same parameters have the same row and outcome, so these are computed once.
local fresh = {}
for i, key in ipairs(keys) do
  local said = ARGV[step * (i - 1) + 3]
  local row = rows[key]
  local is_replaced = not row and unreadable[key]
  if TURNS and not row then
    group_of[key] = ARGV[step * i + 1]
  end
  if is_replaced then
    row = replace(key)
  end
  if not row then
    local like = fresh[said]
    if not like then
      like = { row = new() }
      like.answer = add(like.row, said)
      share(like.row)
      fresh[said] = like
    end
    rows[key], answers[i] = like.row, like.answer
    changed[#changed + 1] = key
  else
    if row.text then
      -- The batch contains this key twice. The key has shared its row with other keys, but now differs from them, so it
      -- receives a copy.
      row = unpacked(row.text)
      rows[key] = row
      row.is_changed = true
    end
    answers[i] = add(row, said)
    if is_replaced and not is_aside(key) then
      answers[i] = 7
    end
    if answers[i] ~= 4 and not row.is_changed then
      changed[#changed + 1] = key
      row.is_changed = true
    end
  end
end
keep(changed, at)
answers = table.concat(answers)
if RECEIPT then
  record(number .. ' ' .. answers)
end
return answers
