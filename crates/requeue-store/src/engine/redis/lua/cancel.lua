-- Cancels keys. The first argument is the state that the keys must have, or 'any'. The keys follow. Answers with one
-- digit for each key: 1 if the key had a pending run, was parked or was damaged.
local at, only = now(), ARGV[1]
local keys, changed, answers = keys_given(1), {}, {}
load(keys)
for i, key in ipairs(keys) do
  local row = rows[key]
  answers[i] = 0
  if row then
    if only == 'any' or only == state_of(row, at) then
      answers[i] = (row.at > 0 or row.parked == 1) and 1 or 0
      take_back(row)
      changed[#changed + 1] = key
    end
  elseif unreadable[key] and (only == 'any' or only == 'damaged') then
    replace(key)
    changed[#changed + 1] = key
    answers[i] = 1
  end
end
keep(changed, at)
return table.concat(answers)
