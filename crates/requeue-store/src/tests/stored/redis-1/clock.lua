-- Returns the time of the server in microseconds since 1970.
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
