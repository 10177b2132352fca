-- Completes deliveries. The first argument is the settings: see `read_flags`. For each completion, the key, the epoch,
-- the encoded parameters and the failure follow: see `fail`. Answers with one digit for each completion: 1 if the lease
-- had not expired.
local at, hold = now(), read_flags(ARGV[1])
local keys, changed, over, answers = keys_given(4), {}, {}, {}
local texts = find_texts(keys)
for i = 1, #keys do
  local key, text, epoch, how = keys[i], texts[i], tonumber(ARGV[4 * i - 1]), ARGV[4 * i]
  answers[i] = 0
  local start = text and skip_group(key, text)
  if how == 'succeed' and text and #text == start + RUNNING_SIZE + (string.byte(text, start + RUNNING_SIZE) or 0)
    and not rows[key] and not is_aside(key) then
    -- The key has neither failures nor a bound. If it was not added again, its row is removed.
    local again, _, _, _, _, held, lease_until = struct.unpack(RUNNING, text, start + 1)
    if again == 0 then
      text = nil
      if held == epoch and lease_until > at and not over[key] then
        over[key] = true
        over[#over + 1] = key
        answers[i] = 1
      end
    end
  end
  local row = not over[key] and (rows[key] or text and read(key, string.sub(text, start + 1)))
  if row and is_held(row, epoch, at) then
    how = parsed(how, ENDS)
    if how.what == 'unclaim' and cancelled_of({ key })[key] then
      -- The run has not started, so it need not be stopped. The cancellation takes effect now.
      how = { what = 'cancelled', is_unclaimed = true }
    end
    finish(row, how, ARGV[4 * i + 1], hold, at)
    if how.what == 'cancelled' then
      redis.call('HDEL', CANCELLED, key)
    end
    changed[#changed + 1] = key
    answers[i] = 1
  end
end
keep(changed, at)
if #over > 0 then
  redis.call('HDEL', ROWS, unpack(over))
  redis.call('ZREM', LEASES, unpack(over))
  if TURNS then
    local changes = {}
    for _, key in ipairs(over) do
      changes[group_of[key]] = (changes[group_of[key]] or 0) - 1
    end
    change_in_flight(changes)
  end
end
return table.concat(answers)
