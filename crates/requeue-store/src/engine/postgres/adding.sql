-- Adds keys, and notifies waiting processes. All operations lock keys in sorted order: see `operations.sql`.

-- A process that finds no key calls `wait`, which records that the process waits. Until `waited_until`, each add calls
-- `wake`, which notifies the waiting processes. If a key is due after the `horizon`, no notification is needed, because
-- each waiting process polls before that time. Most processes poll again within 1.5 s. For the other processes, `wait`
-- ensures that they poll at least 10 s before `waited_until`. `horizon` returns the later of these two times.

-- Records that a process waits for a key of the queue, and polls again within `in_time` microseconds. Within that time,
-- the process need not call `wait` again. If the process polls within 1.5 s, `in_time` is at most 5.5 s: see `SAID`.
create or replace function requeue.wait(in_queue integer, in_time bigint) returns void
language plpgsql {definer} set lock_timeout = '5s' as $$
declare
    -- Answers of the server and timers of the process may be 1 s late.
    said_until bigint := requeue.now() + in_time + 1000000
        + case when in_time > 5500000 then 10000000 else 0 end;
begin
    -- Another 5 s are added, so that most waiting processes need not write this row. In most cases, the sum is 11.5 s.
    update requeue.queues set waited_until = said_until + 5000000
    where id = in_queue and waited_until < said_until;
end $$;

create or replace function requeue.horizon(waited_until bigint, t bigint) returns bigint
language sql immutable as $$
    select greatest(t + 1500000, waited_until - 10000000)
$$;

create or replace function requeue.wake(in_queue integer) returns void
language plpgsql as $$
begin
    perform pg_notify('requeue_' || in_queue, '');
end $$;

-- Notifies waiting processes of a queue with groups, as `wake` does, and names the changed groups. Each name follows a
-- digit for the priority, with 0 for the lowest. Processes visit these groups first. If there are too many groups, the
-- notification names none, and processes search all groups.
create or replace function requeue.wake_for_groups(in_queue integer, in_groups text[]) returns void
language plpgsql as $$
begin
    perform pg_notify('requeue_' || in_queue, case
        -- A notification must be shorter than 8,000 bytes.
        when cardinality(in_groups) <= 64 then array_to_string(array['groups'] || in_groups, e'\n')
        else ''
    end);
end $$;

-- `how` encodes the merge rule of an add: 0 for the earliest due time, 1 for the latest, and 2 for exactly this due
-- time. If the add revives a parked key, 4 is added. Until the answer is computed, `said` in the key's row is `how`
-- plus 8, which differs from every answer. The row of a new key keeps this value.
create or replace function requeue.wants_latest(said smallint) returns boolean language sql immutable
    return said & 3 = 1;

-- The names of the answers. The first answer has the number 0. Only `add_free` returns `locked`.
create or replace function requeue.answers() returns text[] language sql immutable
    return array['new', 'coalesced', 'dirty', 'backing_off', 'parked', 'locked', 'revived'];

-- Raises an error if the keys of a batch may not be in these groups. If `group_by` is null, the queue has no groups.
create or replace function requeue.check_groups(group_by text, in_groups text[], in_count integer) returns void
language plpgsql immutable as $$
declare
    wrong text;
begin
    -- A single search in all names together is faster than one search for each name.
    if group_by is null or array_to_string(in_groups, '') ~ '[\u0001-\u001f\u007f-\u009f]'
        or (select max(octet_length(g)) from unnest(in_groups) g) > 100
    then
        wrong := (
            select g from unnest(in_groups) g
            where group_by is null and g is not null or octet_length(g) > 100
                or g ~ '[\u0001-\u001f\u007f-\u009f]'
            limit 1
        );
    end if;
    if group_by is null and wrong is not null then
        raise exception 'the queue has no groups, and the add names the group %', quote_literal(left(wrong, 100))
            using errcode = 'invalid_parameter_value',
            hint = 'Omit the group, or add to a queue that was created with groups.';
    elsif group_by <> '' and (
        array_position(in_groups, null) > 0 or cardinality(in_groups) is distinct from in_count
    ) then
        raise exception 'the add names no group, and only the library extracts it with the pattern % of the queue',
            quote_literal(group_by)
            using errcode = 'invalid_parameter_value', hint = 'Pass the group of the key: "group" => ''...''.';
    elsif octet_length(wrong) > 100 then
        raise exception 'the name of the group % has % bytes; at most 100 are allowed',
            quote_literal(left(wrong, 25) || '...'), octet_length(wrong)
            using errcode = 'program_limit_exceeded';
    elsif wrong is not null then
        raise exception 'the name of the group % has control characters; remove them', to_json(wrong)
            using errcode = 'invalid_parameter_value';
    end if;
end $$;

-- Adds the keys in their order. Returns the answers as indexes into `answers`. `in_mosts` has the longest wait of each
-- debounced add, and null for other adds. `in_groups` has the group of each key, or is null or empty if the queue has
-- no groups. A key that is already in the queue stays in its group. `in_traces` has the trace contexts of the adds, if
-- there are any.
create or replace function requeue.add_all(
    in_queue integer, in_keys bytea[], in_afters bigint[], in_hows smallint[],
    in_priorities smallint[], in_flags integer[], in_adds integer[], in_mosts bigint[],
    in_groups text[] default null, in_traces text[] default null
) returns smallint[]
-- (Without this setting, the server would plan each batch again, which takes longer than the execution.)
language plpgsql {definer} set plan_cache_mode = force_generic_plan
set enable_nestloop = off as $$
declare
    -- The number of the transaction is assigned before the clock is read. Therefore, a claim that reads a later time
    -- knows of this transaction.
    xid constant xid8 := pg_current_xact_id();
    t bigint := requeue.now();
    place requeue.queues;
    answers smallint[];
    is_due boolean;
    -- The groups in which keys became ready: see `wake_for_groups`.
    ready text[];
begin
    -- This statement raises an error if a key is too long.
    perform requeue.checked(a.key) from unnest(in_keys) a (key)
    where a.key is null or octet_length(a.key) > 2048;
    perform requeue.keep_queue(in_queue);
    select * into place from requeue.queues q where q.id = in_queue;
    if not found then
        perform requeue.check_queue(in_queue);
    end if;
    if place.group_by is not null or array_remove(in_groups, null) <> '{}' then
        perform requeue.check_groups(place.group_by, in_groups, cardinality(in_keys));
    end if;
    with asked as (
        select a.* from unnest(in_keys, in_afters, in_hows, in_priorities, in_flags, in_adds, in_mosts, in_groups,
            in_traces) as a (key, after, how, priority, flags, adds, most, grp, trace)
    ), added as (
        insert into requeue.keys as k
            (queue, key, state, at, since, priority, flags, adds, said, bound, grp, is_due, trace)
        select in_queue, a.key, 0, requeue.later(t, a.after), requeue.later(t, a.after),
            a.priority, a.flags, a.adds, (8 + a.how)::smallint, requeue.later(t, a.most),
            case when place.group_by is not null then coalesce(a.grp, '') end,
            place.group_by is not null and a.after <= 0, a.trace
        from asked a order by a.key
        on conflict (queue, key) do update set
            (state, at, since, priority, adds, flags, failures, steps, until, not_before, error, bound,
             is_due, trace, said) = (
                select o.state, case when w.is_due then o.at else w.merged end,
                    case when w.is_due then k.since else w.merged end,
                    case
                        when o.at is null then excluded.priority
                        else greatest(k.priority, excluded.priority)
                    end,
                    least(o.adds::bigint + excluded.adds, 2147483647)::integer,
                    o.flags | excluded.flags,
                    case when o.starts_over then 0 else k.failures end,
                    case when o.starts_over then 0 else k.steps end,
                    case when o.starts_over then 0 else k.until end,
                    case when not w.is_due and w.at <= t then 0 else o.not_before end,
                    case when o.starts_over then null else k.error end,
                    case
                        when w.is_due or w.at <= t then null
                        when excluded.bound is not null
                            then least(excluded.bound, coalesce(o.bound, o.at))
                        when o.bound is null then null
                        when not requeue.wants_latest(excluded.said) then least(o.bound, w.at)
                        when w.at <= o.at then o.bound
                    end,
                    k.grp is not null and o.state = 0 and (w.is_due or w.merged <= t),
                    requeue.joined(case when not o.starts_over then k.trace end, excluded.trace),
                    case
                        when k.state = 2 then 6
                        when w.at > w.wanted then 3
                        when w.is_due then 1
                        when w.at <= t then case o.state when 1 then 2 else 0 end
                        when o.at is null then 0
                        else 1
                    end
                from (
                    -- The values of the row that remain. If the key starts over, no values remain.
                    select b.starts_over,
                        case when k.state = 2 then 0 else k.state end as state,
                        case when b.starts_over then null else k.at end as at,
                        case when b.starts_over then null else k.bound end as bound,
                        case when b.starts_over then 0 else k.adds end as adds,
                        case when b.starts_over then 0 else k.flags end as flags,
                        case when b.starts_over then 0 else k.not_before end as not_before
                    from (
                        select k.state = 2 or excluded.said & 3 = 2 as starts_over
                    ) b
                ) o, lateral (
                    -- The due time that this add requests. A debounced add can postpone the run only up to the bound.
                    select case
                        when excluded.bound is null then excluded.at
                        else least(excluded.at, coalesce(o.bound, o.at))
                    end as wanted
                ) u, lateral (
                    select coalesce(o.at <= t, false) as is_due, u.wanted,
                        case
                            when place.hold and not coalesce(o.state = 0 and o.at <= t, false)
                                then greatest(u.wanted, o.not_before)
                            else u.wanted
                        end as at
                ) v, lateral (
                    select v.is_due, v.wanted, v.at, case
                        when v.at <= t then t
                        when o.at is null or excluded.bound is not null then v.at
                        when requeue.wants_latest(excluded.said) then greatest(o.at, v.at)
                        else least(o.at, v.at)
                    end as merged
                ) w
            )
        where k.state <> 2 or place.revive or excluded.said & 4 = 4
        returning k.key, k.state, k.at, k.said, k.is_due, k.priority, k.grp
    )
    select array_agg(
            case when a.said >= 8 then 0 else coalesce(a.said, 4) end order by i.key),
        bool_or(a.state = 0 and a.at <= requeue.horizon(place.waited_until, t)
            and (a.said <> 1 or a.at > t)),
        array_agg(distinct a.priority + 1 || a.grp) filter (where a.is_due and place.waited_until > t)
    into answers, is_due, ready
    from asked i left join added a using (key);
    if is_due and place.waited_until > t then
        if place.group_by is null then
            perform requeue.wake(in_queue);
        else
            perform requeue.wake_for_groups(in_queue, coalesce(ready, '{}'));
        end if;
    end if;
    return coalesce(answers, '{}');
end $$;
