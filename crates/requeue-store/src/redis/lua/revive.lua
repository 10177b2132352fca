-- ARGV: the key. Whether it was parked.
local at, key = now(), ARGV[1]
load({ key })
local row = rows[key]
if not row or row.parked == 0 then
  return 0
end
local adds, reasons = row.adds, row.reasons
take_back(row)
row.adds, row.reasons, row.at, row.since = adds, reasons, at, at
keep({ key }, at)
return 1
