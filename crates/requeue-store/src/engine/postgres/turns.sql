-- Claims of queues with groups. The groups take turns, and a group at its limit is passed over.
--
-- The index `keys_turns` has only the keys that are ready, so that groups whose keys wait cost nothing. A key that was
-- written before it was due has `is_due = false`, until a claim after its due time writes the key again.

-- Marks up to 256 keys whose due time has passed.
create or replace function requeue.note_due(in_queue integer, t bigint) returns void
language plpgsql as $$
begin
    update requeue.keys x set is_due = true where x.ctid = any (array(
        select d.ctid from requeue.keys d
        where d.queue = in_queue and d.state = 0 and d.grp is not null and not d.is_due and d.at <= t
        order by d.at limit 256 for update skip locked
    ));
end $$;

-- Returns up to `in_count` groups that have ready keys of a priority, in the order of their names: first those after
-- `in_after`, then the others. Each step seeks in the index, so the number of keys does not matter.
create or replace function requeue.next_groups(
    in_queue integer, in_priority integer, in_after text, in_count integer
) returns text[]
language plpgsql stable as $$
declare
    found text[];
    others text[];
    -- The names have no control characters, so no name lies between `in_after` and this text.
    low constant text := coalesce(in_after || e'\u0001', '');
begin
    with recursive g (name, n) as (
        (select x.grp, 1 from requeue.keys x
         where x.queue = in_queue and x.state = 0 and x.is_due and x.priority = in_priority
             and x.grp is not null and x.grp >= low
         order by x.grp limit 1)
        union all
        select (
            select x.grp from requeue.keys x
            where x.queue = in_queue and x.state = 0 and x.is_due and x.priority = in_priority
                and x.grp is not null and x.grp > g.name
            order by x.grp limit 1
        ), g.n + 1
        from g where g.name is not null and g.n < in_count
    )
    select coalesce(array_agg(g.name order by g.n), '{}') into found from g where g.name is not null;
    if cardinality(found) < in_count then
        with recursive g (name, n) as (
            (select x.grp, 1 from requeue.keys x
             where x.queue = in_queue and x.state = 0 and x.is_due and x.priority = in_priority
                 and x.grp is not null and x.grp < low
             order by x.grp limit 1)
            union all
            select (
                select x.grp from requeue.keys x
                where x.queue = in_queue and x.state = 0 and x.is_due and x.priority = in_priority
                    and x.grp is not null and x.grp > g.name and x.grp < low
                order by x.grp limit 1
            ), g.n + 1
            from g where g.name is not null and g.n < in_count - cardinality(found)
        )
        select array_agg(g.name order by g.n) into others from g where g.name is not null;
        found := found || others;
    end if;
    return found;
end $$;

-- Chooses up to `in_wanted` ready keys of a priority, and locks them. First visits the groups `in_first` in this order,
-- then up to `in_more` groups after `in_after`. A group gets its weight in keys for each turn, and as many turns as the
-- batch has room for. `in_taken` has the keys that this claim has chosen before, and `in_taken_groups` their groups.
--
-- Returns these keys and the chosen ones; the groups that may have more, in the order of their next turns; the last
-- group that was looked up, or null; whether all groups were looked up; and whether another claim or transaction kept
-- this one from taking a key.
--
-- No claim exceeds the limit of a group. A claim first locks the group, and then counts its keys in flight with another
-- statement, which sees each claim that has held the lock before. The lock is only tried, so that claims never wait
-- for each other's commits.
create or replace function requeue.take_turns(
    in_queue integer, in_limit integer, in_priority integer, in_wanted integer, in_first text[], in_after text,
    in_more integer, t bigint, inout taken tid[], inout taken_groups text[],
    out open text[], out cursor text, out is_complete boolean, out is_busy boolean
)
language plpgsql as $$
#variable_conflict use_column
declare
    names text[];
    weights integer[];
    -- Null: no limit. 0: paused.
    limits integer[];
    turns integer;
    first integer := 1;
    last integer;
    may boolean[];
    here tid[];
    its text[];
    more text[];
    reached integer;
    missed boolean;
begin
    names := requeue.next_groups(in_queue, in_priority, in_after, in_more);
    is_complete := cardinality(names) < in_more;
    is_busy := false;
    cursor := case when not is_complete then names[cardinality(names)] end;
    open := '{}';
    select array_agg(g.name order by g.n), array_agg(g.weight order by g.n), array_agg(g.most order by g.n),
        greatest(1, in_wanted / greatest(1, sum(g.weight) filter (where g.most is distinct from 0 and g.n <= 8)))
    into names, weights, limits, turns
    from (
        select u.name, u.n, coalesce(s.weight, 1) as weight,
            case when s.paused then 0 else coalesce(s.most, in_limit) end as most
        from (
            select f.name, min(f.n) as n
            from unnest(in_first || names) with ordinality as f (name, n) group by f.name
        ) u left join requeue.groups s on s.queue = in_queue and s.name = u.name
    ) g;
    while in_wanted > 0 and first <= cardinality(names) loop
        last := least(first + least(greatest(in_wanted, 16), requeue.most_decisions()) - 1, cardinality(names));
        select array_agg(
            case
                when limits[i] is null then true
                when limits[i] = 0 then false
                else pg_try_advisory_xact_lock(1920036210, hashtext(in_queue || ' ' || names[i]))
            end order by i
        ) into may from generate_series(first, last) i;
        with room as (
            select i, names[i] as name, weights[i] as weight, weights[i] * turns as turn,
                case when limits[i] is null then weights[i] * turns else least(
                    weights[i] * turns,
                    limits[i] - (
                        select count(*) from (
                            select from requeue.keys x
                            where x.queue = in_queue and x.state = 1 and x.grp is not null and x.grp = names[i]
                            limit limits[i]
                        ) c
                    ) - (select count(*) from unnest(taken_groups) b (name) where b.name = names[i])
                ) end as room
            from generate_series(first, last) i
            where may[i - first + 1]
        ), chosen as (
            select r.i, r.weight, h.id, h.at
            from room r, lateral (
                select x.ctid as id, x.at from requeue.keys x
                where x.queue = in_queue and x.state = 0 and x.is_due and x.priority = in_priority
                    and x.grp is not null and x.grp = r.name and x.ctid <> all (taken)
                order by x.at limit greatest(r.room, 0) for update skip locked
            ) h
            limit in_wanted
        ), ordered as (
            select c.id, c.i, (row_number() over (partition by c.i order by c.at) - 1) / c.weight as turn
            from chosen c
        ), counted as (
            select c.i, count(*) as many from chosen c group by c.i
        )
        select (select array_agg(o.id order by o.turn, o.i) from ordered o),
            (select array_agg(names[o.i] order by o.turn, o.i) from ordered o),
            coalesce((select max(c.i) from counted c), 0),
            coalesce(array_agg(r.name order by r.i) filter (where c.many = r.turn), '{}'),
            coalesce(bool_or(r.room > 0 and c.many is null), false)
        into here, its, reached, more, missed
        from room r left join counted c using (i);
        here := coalesce(here, '{}');
        taken := taken || here;
        taken_groups := taken_groups || coalesce(its, '{}');
        in_wanted := in_wanted - cardinality(here);
        open := open || more;
        -- A group that this claim may not visit now, or a key that it has not found, is locked by another one.
        is_busy := is_busy or missed or exists (
            select from generate_series(first, last) i where limits[i] > 0 and not may[i - first + 1]
        );
        first := case when in_wanted = 0 then reached else last end + 1;
    end loop;
    open := open || names[first:];
end $$;

-- As `claim`, for a queue with groups. Also takes the groups to visit: for each priority, the first `in_counts` of the
-- rest of `in_first`, then up to `in_more` groups after `in_after`. Returns the groups to visit next in the same form,
-- and whether the claim has looked up all groups. Groups have no lower bounds, so that `lows` stays as it is, except for
-- leases.
create or replace function requeue.claim_turns(
    in_queue integer, in_hold boolean, in_max integer, in_oldest integer, in_lease bigint,
    in_base bigint, in_cap bigint, in_share double precision, in_most integer, in_lows bigint[],
    in_worker text, in_first text[], in_counts integer[], in_after text[], in_more integer,
    out keys bytea[], out epochs bigint[], out priorities smallint[], out adds integer[],
    out reasons integer[], out failures integer[], out queued bigint[], out parked bytea[],
    out parked_failures integer[], out next_due bigint, out lows bigint[], out is_paused boolean,
    out open text[], out counts integer[], out after text[], out is_complete boolean
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    t bigint := requeue.now();
    place requeue.queues;
    firsts text[][];
    taken tid[] := '{}';
    taken_groups text[] := '{}';
    band integer;
    wanted integer;
    visit record;
    begins integer := 1;
    is_busy boolean := false;
    groups text[];
begin
    lows := in_lows;
    open := '{}';
    is_complete := true;
    select * into place from requeue.queues q where q.id = in_queue;
    perform requeue.note_due(in_queue, t);
    for band in reverse 3 .. 1 loop
        begins := 1 + coalesce((select sum(c) from unnest(in_counts[:band - 1]) c), 0);
        groups := in_first[begins : begins + in_counts[band] - 1];
        visit := requeue.take_turns(in_queue, place.group_limit, band - 2, in_max - cardinality(taken), groups,
            in_after[band], in_more, t, taken, taken_groups);
        taken := visit.taken;
        taken_groups := visit.taken_groups;
        open := visit.open || open;
        counts[band] := cardinality(visit.open);
        after[band] := visit.cursor;
        is_complete := is_complete and visit.is_complete;
        is_busy := is_busy or visit.is_busy;
    end loop;
    if cardinality(taken) > 0 then
        perform requeue.raise_epochs();
    end if;
    with claimed as (
        update requeue.keys x set state = 1, at = null, bound = null, not_before = 0, adds = 0,
            reasons = 0, epoch = nextval('requeue.epochs'), lease_until = requeue.later(t, in_lease),
            run_since = t, run_adds = greatest(x.adds, 1), run_reasons = x.reasons,
            run_priority = x.priority, worker = in_worker
        from unnest(taken) with ordinality as p (id, n)
        where x.ctid = p.id
        returning x.key, x.epoch, x.run_priority, x.run_adds, x.run_reasons, x.failures,
            greatest(t - x.since, 0) as queued
    )
    select coalesce(array_agg(c.key), '{}'), coalesce(array_agg(c.epoch), '{}'),
        coalesce(array_agg(c.run_priority), '{}'), coalesce(array_agg(c.run_adds), '{}'),
        coalesce(array_agg(c.run_reasons), '{}'), coalesce(array_agg(c.failures), '{}'),
        coalesce(array_agg(c.queued), '{}')
    into keys, epochs, priorities, adds, reasons, failures, queued
    from claimed c;
end $$;
