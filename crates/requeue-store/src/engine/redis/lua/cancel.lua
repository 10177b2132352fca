-- Cancels keys. ARGV: the state that the keys must have, or 'any'; then the keys. Answers five digits per
-- key, 1 for each part that was cancelled: ready, dirty, waiting, parked, damaged.
local at, only = now(), ARGV[1]
local keys, changed, answers = keys_given(1), {}, {}
load(keys)
for i, key in ipairs(keys) do
  local row = rows[key]
  answers[i] = '00000'
  if row then
    local due, running, parked = is_dirty(row, at), row.epoch > 0, row.parked
    local waiting = row.at > 0 and not due
    local state = parked == 1 and 'parked' or running and 'processing' or due and 'ready' or 'waiting'
    if only == 'any' or only == state then
      take_back(row)
      changed[#changed + 1] = key
      answers[i] = table.concat({
        due and not running and 1 or 0, due and running and 1 or 0, waiting and 1 or 0, parked, 0,
      })
    end
  elseif unreadable[key] and (only == 'any' or only == 'damaged') then
    replace(key)
    changed[#changed + 1] = key
    answers[i] = '00001'
  end
end
keep(changed, at)
return table.concat(answers)
