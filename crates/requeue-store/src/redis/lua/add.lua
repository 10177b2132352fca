-- ARGV: whether early adds are held; then of each a key and what is asked of it. A digit each: what
-- became of it.
local ASKS = { 'delay', 'merge', 'adds', 'reasons', 'priority', 'revives' }
local at, hold = now(), ARGV[1] == '1'
local keys, changed, answers = keys_given(2), {}, {}
for i, key in ipairs(keys) do
  local ask = parsed(ARGV[2 * i + 1], ASKS)
  local row = rows[key] or new()
  if row.parked == 1 and ask.revives == 0 then
    answers[i] = 4
  else
    if row.parked == 1 or ask.merge == 'exactly' then
      take_back(row)
    end
    note(row, ask)
    local wanted = after(at, ask.delay)
    local due = wanted
    if hold and not (row.epoch == 0 and is_dirty(row, at)) then
      due = math.max(wanted, row.not_before)
    end
    answers[i] = demand(row, due, ask.merge, at)
    if due > wanted then
      answers[i] = 3
    end
    rows[key] = row
    changed[#changed + 1] = key
  end
end
keep(changed, at)
return table.concat(answers)
