-- ARGV: whether early adds are held; then of each end key, epoch, how, and error. A digit each: whether
-- it was its holder's still.
local at, hold = now(), ARGV[1] == '1'
local keys, changed, answers = keys_given(4), {}, {}
for i, key in ipairs(keys) do
  local row = rows[key]
  if is_held(row, tonumber(ARGV[4 * i - 1]), at) then
    finish(row, parsed(ARGV[4 * i], ENDS), ARGV[4 * i + 1], hold, at)
    changed[#changed + 1] = key
    answers[i] = 1
  else
    answers[i] = 0
  end
end
keep(changed, at)
return table.concat(answers)
