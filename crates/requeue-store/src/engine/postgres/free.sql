-- Verbs that don't wait for what somebody else has locked. (Not the verbs themselves: in a transaction
-- of one's own, `requeue.add` waits as that does.)

-- As `add_all`, for keys of which none is locked for long: then others of the batch go on, and what it
-- has locked itself is free again.
create function requeue.add_all_soon(
    in_queue integer, in_keys bytea[], in_afters bigint[], in_hows smallint[],
    in_priorities smallint[], in_reasons integer[], in_adds integer[]
) returns smallint[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
begin
    return requeue.add_all(in_queue, in_keys, in_afters, in_hows, in_priorities, in_reasons,
        in_adds);
end $$;

-- As `finish`, likewise.
create function requeue.finish_soon(in_queue integer, in_hold boolean, ends requeue.ends)
returns integer[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
begin
    return requeue.finish(in_queue, in_hold, ends);
end $$;

-- And verbs that leave as it is what somebody has locked: halves in which something is are halved again.

-- As `add_all`, and of what is locked the answer is 5.
create function requeue.add_free(
    in_queue integer, in_keys bytea[], in_afters bigint[], in_hows smallint[],
    in_priorities smallint[], in_reasons integer[], in_adds integer[]
) returns smallint[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '1ms' as $$
declare
    half integer := cardinality(in_keys) / 2;
begin
    begin
        return requeue.add_all(in_queue, in_keys, in_afters, in_hows, in_priorities, in_reasons,
            in_adds);
    exception when lock_not_available then
        if half = 0 then
            return '{5}';
        end if;
    end;
    return requeue.add_free(in_queue, in_keys[:half], in_afters[:half], in_hows[:half],
            in_priorities[:half], in_reasons[:half], in_adds[:half])
        || requeue.add_free(in_queue, in_keys[half + 1:], in_afters[half + 1:],
            in_hows[half + 1:], in_priorities[half + 1:], in_reasons[half + 1:],
            in_adds[half + 1:]);
end $$;

-- Those of the ends with these numbers, counted from 1.
create function requeue.part(ends requeue.ends, first integer, last integer) returns requeue.ends
language plpgsql immutable as $$
begin
    return row(
        ends.keys[first:last], ends.epochs[first:last], ends.hows[first:last],
        ends.delays[first:last], ends.priorities[first:last], ends.adds[first:last],
        ends.reasons[first:last], ends.errors[first:last], ends.bases[first:last],
        ends.caps[first:last], ends.shares[first:last], ends.mosts[first:last]
    )::requeue.ends;
end $$;

-- As `finish`, and with the numbers of those that are locked.
create function requeue.finish_free(
    in_queue integer, in_hold boolean, ends requeue.ends, out held integer[], out locked integer[]
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '1ms' as $$
declare
    many integer := cardinality(ends.keys);
    half integer := many / 2;
    -- Those before and after, of which the latter are counted from there.
    these record;
    those record;
begin
    begin
        held := requeue.finish(in_queue, in_hold, ends);
        locked := '{}';
        return;
    exception when lock_not_available then
        if half = 0 then
            held := '{}';
            locked := '{1}';
            return;
        end if;
    end;
    these := requeue.finish_free(in_queue, in_hold, requeue.part(ends, 1, half));
    those := requeue.finish_free(in_queue, in_hold, requeue.part(ends, half + 1, many));
    held := these.held || array(select n + half from unnest(those.held) n);
    locked := these.locked || array(select n + half from unnest(those.locked) n);
end $$;
