-- Renews leases. ARGV: the lease; then for each delivery the key and epoch. Answers one digit per delivery:
-- 1 if its holder still had the lease, or 2 if the holder had the lease but the run was cancelled.
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
