-- Makes parked or waiting keys ready. The first argument is 'parked' or 'waiting', and the keys follow. Answers with
-- one digit for each key: 1 if it was in this state.
local at, from, keys = now(), ARGV[1], keys_given(1)
local changed, answers = {}, {}
load(keys)
for i, key in ipairs(keys) do
  local row = rows[key]
  answers[i] = 0
  if row and state_of(row, at) == from then
    local adds, flags, trace = row.adds, row.flags, row.trace
    take_back(row)
    row.adds, row.flags, row.at, row.since, row.trace = adds, flags, at, at, trace
    changed[#changed + 1] = key
    answers[i] = 1
  end
end
keep(changed, at)
return table.concat(answers)
