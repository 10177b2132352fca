-- Revives keys. ARGV: the keys. Answers one digit per key: 1 if it was parked.
local at = now()
local changed, answers = {}, {}
load(ARGV)
for i, key in ipairs(ARGV) do
  local row = rows[key]
  answers[i] = 0
  if row and row.parked == 1 then
    local adds, reasons = row.adds, row.reasons
    take_back(row)
    row.adds, row.reasons, row.at, row.since = adds, reasons, at, at
    changed[#changed + 1] = key
    answers[i] = 1
  end
end
keep(changed, at)
return table.concat(answers)
