-- Operations that do not wait for the locks of other transactions. The plain operations do wait: `requeue.add` in a
-- transaction of the caller waits as long as the timeouts of that transaction permit.

-- Adds keys as `add_all` does, for a caller that does not expect locked keys. If a key stays locked for 100 ms, the
-- function fails and releases its locks, so that the other keys of the batch can be processed.
create or replace function requeue.add_all_soon(
    in_queue integer, in_keys bytea[], in_afters bigint[], in_hows smallint[],
    in_priorities smallint[], in_flags integer[], in_adds integer[], in_mosts bigint[],
    in_groups text[] default null, in_traces text[] default null
) returns smallint[]
language plpgsql {definer} set lock_timeout = '100ms' as $$
begin
    return requeue.add_all(in_queue, in_keys, in_afters, in_hows, in_priorities, in_flags, in_adds,
        in_mosts, in_groups, in_traces);
end $$;

-- Completes deliveries as `finish` does, with the timeout of `add_all_soon`.
create or replace function requeue.finish_soon(
    in_queue integer, in_hold boolean, ends requeue.ends, in_past boolean default false
) returns integer[]
language plpgsql {definer} set lock_timeout = '100ms' as $$
begin
    return requeue.finish(in_queue, in_hold, ends, in_past);
end $$;

-- The following operations skip locked keys. If a part of a batch contains a locked key, the operation halves this part
-- recursively.

-- Adds keys as `add_all` does. The answer for a locked key is 5.
create or replace function requeue.add_free(
    in_queue integer, in_keys bytea[], in_afters bigint[], in_hows smallint[],
    in_priorities smallint[], in_flags integer[], in_adds integer[], in_mosts bigint[],
    in_groups text[] default null, in_traces text[] default null
) returns smallint[]
language plpgsql {definer} set lock_timeout = '1ms' as $$
declare
    half integer := cardinality(in_keys) / 2;
begin
    begin
        return requeue.add_all(in_queue, in_keys, in_afters, in_hows, in_priorities, in_flags, in_adds,
            in_mosts, in_groups, in_traces);
    exception when lock_not_available then
        if half = 0 then
            return '{5}';
        end if;
    end;
    return requeue.add_free(in_queue, in_keys[:half], in_afters[:half], in_hows[:half],
            in_priorities[:half], in_flags[:half], in_adds[:half], in_mosts[:half], in_groups[:half],
            in_traces[:half])
        || requeue.add_free(in_queue, in_keys[half + 1:], in_afters[half + 1:],
            in_hows[half + 1:], in_priorities[half + 1:], in_flags[half + 1:],
            in_adds[half + 1:], in_mosts[half + 1:], in_groups[half + 1:], in_traces[half + 1:]);
end $$;

-- Returns the completions from `first` to `last`, numbered from 1.
create or replace function requeue.part(ends requeue.ends, first integer, last integer) returns requeue.ends
language plpgsql immutable as $$
begin
    return row(
        ends.keys[first:last], ends.epochs[first:last], ends.hows[first:last],
        ends.delays[first:last], ends.priorities[first:last], ends.adds[first:last],
        ends.flags[first:last], ends.errors[first:last], ends.bases[first:last],
        ends.caps[first:last], ends.shares[first:last], ends.mosts[first:last],
        ends.tooks[first:last], ends.statuses[first:last], ends.outputs[first:last]
    )::requeue.ends;
end $$;

-- Completes deliveries as `finish` does. Also returns the positions of the locked keys.
create or replace function requeue.finish_free(
    in_queue integer, in_hold boolean, ends requeue.ends, in_past boolean default false,
    out held integer[], out locked integer[]
)
language plpgsql {definer} set lock_timeout = '1ms' as $$
declare
    many integer := cardinality(ends.keys);
    half integer := many / 2;
    -- The results for the first and the second half. The positions in `those` are relative to the start of the second
    -- half.
    these record;
    those record;
begin
    begin
        held := requeue.finish(in_queue, in_hold, ends, in_past);
        locked := '{}';
        return;
    exception when lock_not_available then
        if half = 0 then
            held := '{}';
            locked := '{1}';
            return;
        end if;
    end;
    these := requeue.finish_free(in_queue, in_hold, requeue.part(ends, 1, half), in_past);
    those := requeue.finish_free(in_queue, in_hold, requeue.part(ends, half + 1, many), in_past);
    held := these.held || array(select n + half from unnest(those.held) n);
    locked := these.locked || array(select n + half from unnest(those.locked) n);
end $$;
