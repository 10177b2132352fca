-- ARGV: whether re-adds are held; then of each a key and what is asked of it. A digit each: what
-- became of it; 7 for a key that is new and has replaced a row that could not be read and was not set aside.
local ASKS = { 'delay', 'merge', 'adds', 'reasons', 'priority', 'revives' }
local at, hold = now(), ARGV[1] == '1'
local keys, changed, answers = keys_given(2), {}, {}
load(keys)

-- What becomes of a key, and its row.
local function add(row, ask)
  local was_parked = row.parked == 1
  if was_parked and ask.revives == 0 then
    return 4
  end
  if was_parked or ask.merge == 'exactly' then
    take_back(row)
  end
  note(row, ask)
  local wanted = after(at, ask.delay)
  local due = wanted
  if hold and not (row.epoch == 0 and is_dirty(row, at)) then
    due = math.max(wanted, row.not_before)
  end
  local answer = demand(row, due, ask.merge, at)
  return was_parked and 6 or due > wanted and 3 or answer
end

-- Of keys of which there was nothing: by what was asked, what came of it.
local fresh = {}
for i, key in ipairs(keys) do
  local said = ARGV[2 * i + 1]
  local row = rows[key]
  local is_replaced = not row and unreadable[key]
  if is_replaced then
    row = replace(key)
  end
  if not row then
    local like = fresh[said]
    if not like then
      like = { row = new() }
      like.answer = add(like.row, parsed(said, ASKS))
      share(like.row)
      fresh[said] = like
    end
    rows[key], answers[i] = like.row, like.answer
    changed[#changed + 1] = key
  else
    if row.text then
      -- It is in there twice, and is not like the others any more.
      row = unpacked(row.text)
      rows[key] = row
      row.is_changed = true
    end
    answers[i] = add(row, parsed(said, ASKS))
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
return table.concat(answers)
