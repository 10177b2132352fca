-- ARGV: the key. What was taken: ready, dirty, waiting, parked.
local at, key = now(), ARGV[1]
load({ key })
local row = rows[key]
if not row then
  return '0000'
end
local due, running, parked = is_dirty(row, at), row.epoch > 0, row.parked
local waiting = row.at > 0 and not due
take_back(row)
keep({ key }, at)
return table.concat({
  due and not running and 1 or 0, due and running and 1 or 0, waiting and 1 or 0, parked,
})
