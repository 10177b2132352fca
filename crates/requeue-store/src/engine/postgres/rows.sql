-- The effect of each operation on a row. `row.rs` is the reference.

-- Returns the time. All functions read the time from this function.
create or replace function requeue.now() returns bigint language sql volatile
    return (extract(epoch from clock_timestamp()) * 1000000)::bigint;

create or replace function requeue.later(at bigint, micros bigint) returns bigint language sql immutable
    return case when micros > 9223372036854775807 - at then 9223372036854775807 else at + micros end;

create or replace function requeue.noted(
    k requeue.keys, in_priority smallint, in_adds integer, in_flags integer
) returns requeue.keys
language plpgsql as $$
begin
    k.priority := case when k.at is null then in_priority else greatest(k.priority, in_priority) end;
    k.adds := least(k.adds::bigint + in_adds, 2147483647);
    k.flags := k.flags | in_flags;
    return k;
end $$;

-- Returns the trace contexts of earlier and later adds, one per line: see `join_traces` in `row.rs`.
create or replace function requeue.joined(earlier text, later text) returns text language sql immutable
    return case
        when octet_length(earlier) + octet_length(later) < 1024 then earlier || e'\n' || later
        else coalesce(earlier, later)
    end;

create or replace function requeue.demanded(k requeue.keys, wanted bigint, t bigint) returns requeue.keys
language plpgsql as $$
begin
    if k.at <= t then
        return k;
    end if;
    if wanted <= t then
        k.not_before := 0;
        k.at := t;
        k.bound := null;
    else
        k.at := least(k.at, wanted);
        k.bound := case when k.bound is not null then least(k.bound, wanted) end;
    end if;
    k.since := k.at;
    return k;
end $$;

create or replace function requeue.forgotten(k requeue.keys) returns requeue.keys
language plpgsql as $$
begin
    k.failures := 0;
    k.steps := 0;
    k.until := 0;
    k.not_before := 0;
    k.error := null;
    k.failed_at := null;
    return k;
end $$;

-- Returns the key after the completion of its delivery. The values of `how` are 0 succeed, 1 requeue_after, 2 retry, 3
-- retry_after, 4 give_up, 5 release, 6 unclaim and 7 cancelled. The run of an unclaimed key was not started, so the key
-- returns to its place in the order. `delay` is then the time for which the key had been ready before the claim. If the
-- run of an unclaimed key was cancelled, the cancellation takes effect immediately.
create or replace function requeue.ended(
    k requeue.keys, t bigint, hold boolean, how smallint, delay bigint, in_priority smallint,
    in_adds integer, in_flags integer, in_error text, base bigint, cap bigint,
    share double precision, most integer
) returns requeue.keys
language plpgsql as $$
declare
    wait bigint;
    wanted bigint;
    place bigint := greatest(k.run_since - delay, 0);
begin
    -- The process that completes the delivery may not have claimed the key, so the stored parameters are used: see
    -- `Asked`.
    if in_adds = 0 then
        in_priority := k.run_priority;
        in_adds := k.run_adds;
        in_flags := k.run_flags;
    end if;
    if how = 6 and k.cancel_epoch = k.epoch then
        how := 7;
    end if;
    if how between 2 and 6 then
        k.trace := requeue.joined(k.run_trace, k.trace);
    end if;
    if how < 2 then
        k := requeue.forgotten(k);
    elsif how = 5 then
        k := requeue.noted(k, in_priority, in_adds, in_flags);
        k := requeue.demanded(k, greatest(k.not_before, t), t);
    elsif how = 6 then
        k := requeue.noted(k, in_priority, in_adds, in_flags);
    elsif how < 5 then
        k.failures := least(k.failures::bigint + 1, 2147483647);
        k.error := in_error;
        k.failed_at := t;
        k := requeue.noted(k, in_priority, in_adds, in_flags);
        if how = 3 then
            wait := delay;
        elsif how = 2 and t < k.until then
            -- A failure during the backoff of the previous failure is not counted.
            wait := k.until - t;
        elsif how = 2 then
            if requeue.later(requeue.later(k.until, cap), cap) < t then
                k.steps := 0;
            end if;
            -- The value is limited to 9e18, because a double can represent numbers of microseconds that a bigint
            -- cannot.
            wait := least(9e18, ceil(
                least(base * power(2::double precision, least(k.steps, 64)), cap)
                * (0.5 + share / 2)));
            k.steps := least(k.steps::bigint + 1, 2147483647);
            k.until := requeue.later(t, wait);
        end if;
        if wait is null or k.failures >= most then
            if k.at is null then
                k.state := 2;
                k.since := t;
            else
                -- The key was added during the run, so its failures are reset.
                k := requeue.forgotten(k);
            end if;
        else
            wanted := requeue.later(t, wait);
            if hold then
                k.not_before := greatest(k.not_before, wanted);
                wanted := k.not_before;
                if wanted > t and k.at is not null then
                    k.at := greatest(k.at, wanted);
                    k.since := k.at;
                    k.bound := null;
                end if;
            end if;
            k := requeue.demanded(k, wanted, t);
        end if;
    end if;
    if k.state = 1 then
        k.state := 0;
    end if;
    {k.no_run}
    if how = 6 then
        -- Adds during the delivery are coalesced, as for any ready key.
        k.at := place;
        k.since := place;
        k.bound := null;
    elsif k.at <= t then
        -- The key becomes the last of the ready keys. `since` remains the time of the add.
        k.at := t;
        k.bound := null;
    end if;
    if how = 1 then
        k := requeue.noted(k, in_priority, 1, 0);
        k := requeue.demanded(k, requeue.later(t, delay), t);
    end if;
    return k;
end $$;

-- Encodes a number in LEB128.
create or replace function requeue.leb128(n bigint) returns bytea language sql immutable as $$
    select case
        when n < 128 then substring(int2send(n::smallint) from 2)
        else substring(int2send((n & 127 | 128)::smallint) from 2) || requeue.leb128(n >> 7)
    end
$$;

-- Returns the past of a key, including the run that ends now, in the form of `engine/past.rs`. `was` is the row of the
-- key before the completion, and `k` is the row after it. If `in_took` is null, the duration of the run is the time
-- since its claim.
create or replace function requeue.with_run(
    was requeue.keys, k requeue.keys, t bigint, how smallint, in_took bigint, is_expired boolean
) returns bytea
language plpgsql immutable as $$
declare
    took constant bigint := coalesce(in_took, greatest(t - was.run_since, 0));
    digit constant integer := case is_expired when true then 8 else 0 end + case
        when how < 2 then how
        when how = 5 then 4
        when how = 7 then 5
        when k.state = 2 then 3
        when k.failures = 0 then 6
        else 2
    end;
    ended constant bytea := substring(int8send(t / 1000) from 3);
    last constant bigint := ('x' || encode(substring(was.past from 1 for 6), 'hex'))::bit(48)::bigint;
begin
    -- The run of an unclaimed key has not started, so the past does not include it.
    if how = 6 then
        return k.past;
    end if;
    return substring(
        ended || requeue.leb128(was.run_adds::bigint * 16 + digit) || requeue.leb128(took / 1000)
        || requeue.leb128(case
            when was.since <= was.run_since then greatest(t - took - was.since, 0) / 1000 + 1
            -- An add during the run has overwritten the time at which the key became ready.
            else 0
        end)
        || coalesce(requeue.leb128(greatest(t / 1000 - last, 0)) || substring(was.past from 7), '')
        from 1 for 64);
end $$;

-- Stores the row of a locked key, or deletes it if the key has no state. Each statement that writes `at` also writes
-- `is_due`: see `turns.sql`.
create or replace function requeue.keep(k requeue.keys, t bigint) returns void
language plpgsql as $$
begin
    if k.state = 0 and k.at is null then
        delete from requeue.keys x where x.queue = k.queue and x.key = k.key;
    else
        update requeue.keys x set ({columns}, is_due) =
            row({k.columns}, k.grp is not null and k.state = 0 and k.at <= t)
        where x.queue = k.queue and x.key = k.key;
    end if;
end $$;

