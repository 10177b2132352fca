-- Applies the rates of a queue and of its groups, with the generic cell rate algorithm. `Gate` in engine/gate.rs is the
-- reference. All products of whole numbers in this file are below 2^53, so they are exact.

-- Returns the gate of a rate: its numbers, the time from which it permits the next start, and whether this time differs
-- from the stored time. The stored time may be more than one interval in the future, because the clock was set back or
-- the rate was changed. In this case, the gate permits the next start after one interval.
local function parse_gate(text, at)
  local starts, per, burst, stored = string.match(text, '^(%d+) (%d+) (%d+) (%d+)$')
  if not starts then
    return nil
  end
  local gate = { starts = tonumber(starts), per = tonumber(per), burst = tonumber(burst), used = 0 }
  if gate.starts == 0 or gate.per == 0 or gate.burst == 0 then
    return nil
  end
  stored = tonumber(stored)
  gate.next_at = math.min(stored, at + math.ceil(gate.per / gate.starts) + 1)
  gate.is_changed = gate.next_at ~= stored
  gate.tolerance = math.floor(gate.per * (gate.burst - 1) / gate.starts)
  return gate
end

-- Returns the number of further starts that the gate permits, up to `wanted`. The starts that this claim has already
-- used are subtracted.
local function permitted(gate, at, wanted)
  if at < gate.next_at then
    return 0
  end
  local unused, most = at - gate.next_at, gate.burst
  if unused <= gate.tolerance then
    most = math.min(1 + math.floor(unused * gate.starts / gate.per), gate.burst)
  end
  return math.max(math.min(wanted, most - gate.used), 0)
end

-- Returns the gate as text, after `starts` starts.
local function text_of_gate(gate, at, starts)
  if starts > 0 then
    gate.next_at = math.max(gate.next_at, at - gate.tolerance) + math.ceil(starts * gate.per / gate.starts)
  end
  return string.format('%.0f %.0f %.0f %.0f', gate.starts, gate.per, gate.burst, gate.next_at)
end
