-- The rates of a queue and of its groups, by the generic cell rate algorithm: `Gate` in engine/gate.rs is the reference.
-- All products of whole numbers here are below 2^53, so that they are exact.

-- Returns the gate of a rate: its numbers, the time from which it permits the next start, and whether that time differs
-- from the stored time. If the stored time is more than one interval ahead, the clock was set back, or the rate was
-- changed.
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

-- Returns the number of starts, up to `wanted`, that the gate permits in addition to the starts that this claim has
-- used.
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

-- Returns the text of the gate after the given number of starts.
local function text_of_gate(gate, at, starts)
  if starts > 0 then
    gate.next_at = math.max(gate.next_at, at - gate.tolerance) + math.ceil(starts * gate.per / gate.starts)
  end
  return string.format('%.0f %.0f %.0f %.0f', gate.starts, gate.per, gate.burst, gate.next_at)
end
