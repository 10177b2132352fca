-- Applies the rates of a queue and of its groups, with the generic cell rate algorithm. `Gate` in engine/gate.rs is the
-- reference.
--
-- The table `rates` has the time from which each rate permits the next start. The row for the queue itself has a
-- control character as its name, so no group has the same name. One claim at a time uses a rate, and holds a lock until
-- it commits. A claim that cannot get the lock does not wait, so claims never wait for each other's commits. Each
-- function in this file reads the time with a statement that begins when the lock is held. Therefore, the statement
-- sees the writes of all earlier holders of the lock.

-- Returns the number of starts that a rate permits at the time `t`. Returns null if there is no rate.
create or replace function requeue.permitted(in_rate bigint[], next_at bigint, t bigint) returns integer
language sql immutable
    return case
        when in_rate is null then null
        when t < next_at then 0
        -- (The type is numeric, because a bigint cannot represent the product of a time since 1970 and a number of
        -- starts.)
        else least(1 + div((t - next_at)::numeric * in_rate[1], in_rate[2]), in_rate[3], 2147483647)::integer
    end;

-- Returns the time in which the rate permits `starts` starts, rounded up.
create or replace function requeue.time_of_starts(in_rate bigint[], starts integer) returns bigint
language sql immutable
    return ceil(starts * in_rate[2]::numeric / in_rate[1])::bigint;

-- Returns the time from which a rate permits the next start. The stored time may be more than one interval in the
-- future, because the clock was set back or the rate was changed. In this case, the result is one interval from now.
create or replace function requeue.next_start(in_rate bigint[], next_at bigint, t bigint) returns bigint
language sql immutable
    return least(coalesce(next_at, 0), t + requeue.time_of_starts(in_rate, 1) + 1);

-- Returns the time of the next start, if `starts` starts happen at the time `t`.
create or replace function requeue.after_starts(in_rate bigint[], next_at bigint, t bigint, starts integer)
returns bigint
language sql immutable
    return case
        when starts = 0 then next_at
        else greatest(next_at, t - div(in_rate[2]::numeric * (in_rate[3] - 1), in_rate[1])::bigint)
            + requeue.time_of_starts(in_rate, starts)
    end;

-- Tries to get the right to use the rate of a queue, or to visit a group. The right lasts until the transaction ends.
create or replace function requeue.try_lock(in_queue integer, in_name text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    -- The bytes of the first number are "rqgr".
    return pg_try_advisory_xact_lock(1920034674, hashtext(in_queue || ' ' || in_name));
end $$;

-- Returns how many of `in_max` keys a claim may deliver by the rate of the queue, and the time of the next start. If
-- another claim has the right to use the rate, the number is 0, and the process claims again soon. The time of this
-- call is later than the times of all claims that have had the right. The claim must deliver its keys at a still later
-- time.
create or replace function requeue.begin_rate(
    in_queue integer, in_rate bigint[], in_max integer, out most integer, out next_at bigint
)
language plpgsql as $$
declare
    t bigint := requeue.now();
    stored bigint := (select r.next_at from requeue.rates r where r.queue = in_queue and r.name = e'\u0001');
begin
    most := 0;
    next_at := requeue.next_start(in_rate, stored, t);
    -- Many processes may wait for the same time. Before this time, they do not need the lock.
    if next_at > t and next_at = stored then
        return;
    end if;
    if not requeue.try_lock(in_queue, e'\u0001') then
        next_at := t + 3000;
        return;
    end if;
    t := requeue.now();
    stored := (select r.next_at from requeue.rates r where r.queue = in_queue and r.name = e'\u0001');
    next_at := requeue.next_start(in_rate, stored, t);
    most := least(in_max, requeue.permitted(in_rate, next_at, t));
    if most = 0 then
        perform requeue.keep_rate(in_queue, e'\u0001', next_at);
    end if;
end $$;

-- Stores the time of the next start, unless this time is already stored.
create or replace function requeue.keep_rate(in_queue integer, in_name text, in_at bigint) returns void
language plpgsql as $$
begin
    insert into requeue.rates as r (queue, name, next_at) values (in_queue, in_name, in_at)
    on conflict (queue, name) do update set next_at = excluded.next_at where r.next_at <> excluded.next_at;
end $$;

-- Records that a claim has delivered `in_starts` keys at the time `t`, after `begin_rate`. Returns the time until the
-- rate permits a further start if the claim delivered as many keys as the rate permitted, and `in_next` if it did not.
create or replace function requeue.end_rate(
    in_queue integer, in_rate bigint[], in_max integer, in_most integer, in_starts integer, in_at bigint, t bigint,
    in_next bigint
) returns bigint
language plpgsql as $$
declare
    next_at constant bigint := requeue.after_starts(in_rate, in_at, t, in_starts);
begin
    if in_starts > 0 then
        perform requeue.keep_rate(in_queue, e'\u0001', next_at);
    end if;
    if in_starts < in_most or in_most = in_max then
        return in_next;
    end if;
    -- If no work is left, the result is null. Otherwise, `work --until-empty` would wait for the rate.
    return case when not requeue.is_idle(in_queue) then greatest(next_at - t, 0) end;
end $$;

-- Returns the number of starts that the rate of a group permits. If the stored time is more than one interval in the
-- future, only a claim that has the lock from `try_group` corrects it.
create or replace function requeue.permitted_now(in_queue integer, c requeue.turn, is_locked boolean) returns integer
language plpgsql as $$
declare
    -- This time is not earlier than the time of any claim that has held the lock.
    t constant bigint := requeue.now();
    stored constant bigint := (select r.next_at from requeue.rates r where r.queue = in_queue and r.name = c.name);
    next_at constant bigint := requeue.next_start(c.rate, stored, t);
    most constant integer := requeue.permitted(c.rate, next_at, t);
begin
    if most > 0 or next_at = stored then
        return most;
    elsif is_locked then
        perform requeue.keep_rate(in_queue, c.name, next_at);
        return 0;
    end if;
    -- The clock was set back, or the rate was changed. To correct the stored time, the claim needs the lock.
    return 2147483647;
end $$;

-- Records that a claim delivers one key for each element of `in_groups`, at the time `t`, after `try_group`. A group
-- can occur several times.
create or replace function requeue.end_group_rates(in_queue integer, in_groups text[], t bigint) returns void
language plpgsql as $$
begin
    insert into requeue.rates as r (queue, name, next_at)
    select in_queue, u.name, requeue.after_starts(g.rate, requeue.next_start(g.rate, s.next_at, t), t, u.starts)
    from (
        select d collate "C" as name, count(*)::integer as starts from unnest(in_groups) d group by 1
    ) u
    cross join lateral (
        select x.rate from requeue.groups x where x.queue = in_queue and x.name = u.name limit 1
    ) g
    left join lateral (
        select x.next_at from requeue.rates x where x.queue = in_queue and x.name = u.name limit 1
    ) s on true
    where g.rate is not null
    on conflict (queue, name) do update set next_at = excluded.next_at;
end $$;

-- Returns the time until the rate of a group permits the start of a ready key. Only rates that prevented starts at
-- `began`, the time at which the claim began, are included.
create or replace function requeue.next_by_rates(in_queue integer, began bigint, t bigint) returns bigint
language plpgsql stable as $$
begin
    return (
        select greatest(r.next_at - t, 0) from requeue.rates r
        where r.queue = in_queue and r.next_at > began and r.name <> e'\u0001' and exists (
            select from generate_series(-1, 1) p (priority) cross join lateral (
                select from requeue.keys x
                where x.queue = in_queue and x.state = 0 and x.is_due and x.priority = p.priority
                    and x.grp is not null and x.grp = r.name
                order by x.at limit 1
            ) h
        )
        order by r.next_at limit 1
    );
end $$;

-- Sets the rate of a queue, and wakes the waiting processes.
create or replace function requeue.set_rate(in_queue integer, in_rate bigint[]) returns void
language plpgsql {definer} set lock_timeout = '5s' as $$
begin
    update requeue.queues q set rate = in_rate where q.id = in_queue;
    perform requeue.check_queue(in_queue);
    delete from requeue.rates r where r.queue = in_queue and r.name = e'\u0001' and in_rate is null;
    perform requeue.wake(in_queue);
end $$;

-- Sets the rate of a queue that has none, and wakes the waiting processes. Returns the rate that the queue has after
-- the call.
create or replace function requeue.set_first_rate(in_queue integer, in_rate bigint[]) returns bigint[]
language plpgsql {definer} set lock_timeout = '5s' as $$
begin
    -- If two processes set a first rate, the second waits at this statement, and then finds the rate of the first.
    update requeue.queues q set rate = in_rate where q.id = in_queue and q.rate is null;
    perform requeue.check_queue(in_queue);
    perform requeue.wake(in_queue);
    return (select q.rate from requeue.queues q where q.id = in_queue);
end $$;

-- Sets the rate of a group, and wakes the waiting processes.
create or replace function requeue.set_group_rate(in_queue integer, in_name text, in_rate bigint[]) returns void
language plpgsql {definer} set lock_timeout = '5s' as $$
begin
    perform requeue.keep_queue(in_queue);
    perform requeue.check_queue(in_queue);
    -- The rows are locked in the same order as in `change_group`.
    update requeue.queues q set has_group_rates = true where q.id = in_queue and not q.has_group_rates;
    insert into requeue.groups as g (queue, name, rate) values (in_queue, in_name, in_rate)
    on conflict (queue, name) do update set rate = excluded.rate;
    delete from requeue.rates r where r.queue = in_queue and r.name = in_name and in_rate is null;
    perform requeue.wake(in_queue);
end $$;
