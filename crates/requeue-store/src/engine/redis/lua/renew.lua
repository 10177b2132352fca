-- Renews leases. The first argument is the duration of the lease. The key and the epoch of each delivery follow.
-- Answers with one digit for each delivery: 1 if the lease was renewed, and 2 if it was renewed but the run was
-- cancelled.
local at = now()
local lease_until = after(at, tonumber(ARGV[1]))
local keys, changed, answers = keys_given(2), {}, {}
load(keys)
local cancelled = cancelled_of(keys)
for i, key in ipairs(keys) do
  local row = rows[key]
  answers[i] = 0
  if is_held(row, tonumber(ARGV[2 * i + 1]), at) then
    row.lease_until = lease_until
    changed[#changed + 1] = key
    answers[i] = cancelled[key] and 2 or 1
  end
end
keep(changed, at)
return table.concat(answers)
