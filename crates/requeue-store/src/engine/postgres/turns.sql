-- Claims of queues with groups. The groups take turns, and a group at its limit is passed over. The process that claims
-- knows which groups come next: see `Turns`.
--
-- The index `keys_turns` has only the keys that are ready, so that groups whose keys wait cost nothing. A key that was
-- written before it was due has `is_due = false`, until a claim after its due time writes the key again.
--
-- Each search for one row has `limit 1`. Without it, a plan that was made while the table was small would join in
-- another order, and read the whole index.

-- Marks up to 256 keys whose due time has passed. Returns their number.
create or replace function requeue.note_due(in_queue integer, t bigint) returns integer
language plpgsql as $$
declare
    marked integer;
begin
    update requeue.keys x set is_due = true where x.ctid = any (array(
        select d.ctid from requeue.keys d
        where d.queue = in_queue and d.state = 0 and d.grp is not null and not d.is_due and d.at <= t
        order by d.at limit 256 for update skip locked
    ));
    get diagnostics marked = row_count;
    return marked;
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
    if in_after is not null and cardinality(found) < in_count then
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

-- Returns the groups to visit: for each priority those of the ring, in their order, and then those that were found.
-- Leaves out paused groups, and found groups at their limits or whose rates permit no start, so that they do not take
-- places in the ring, nor locks.
create or replace function requeue.candidates(
    in_queue integer, in_limit integer, ring_bands integer[], ring text[], used integer[],
    found_bands integer[], found_names text[]
) returns requeue.turn[]
language plpgsql stable as $$
declare
    t constant bigint := requeue.now();
begin
    return (select coalesce(array_agg(row(u.band - 2, u.name, u.used, u.is_next, coalesce(s.weight, 1),
            coalesce(s.most, in_limit))::requeue.turn order by u.n), '{}')
    from (
        select f.band, f.name, min(f.n) as n, max(f.used) as used, bool_or(f.is_next) as is_next
        from (
            select r.band, r.name collate "C" as name, r.n, r.used, true as is_next
            from unnest(ring_bands, ring, used) with ordinality as r (band, name, used, n)
            union all
            select g.band, g.name, cardinality(ring) + g.n, 0, false
            from unnest(found_bands, found_names) with ordinality as g (band, name, n)
        ) f group by f.band, f.name
    ) u left join lateral (
        select g.weight, g.most, g.paused, g.rate from requeue.groups g
        where g.queue = in_queue and g.name = u.name limit 1
    ) s on true
    where s.paused is not true and (
        u.is_next or s.rate is null or not exists (
            select from requeue.rates r
            where r.queue = in_queue and r.name = u.name and r.next_at > t
                and r.next_at = requeue.next_start(s.rate, r.next_at, t)
        )
    ) and (
        u.is_next or coalesce(s.most, in_limit) is null or coalesce(s.most, in_limit) > (
            select count(*) from (
                select from requeue.keys x
                where x.queue = in_queue and x.state = 1 and x.grp is not null and x.grp = u.name
                limit coalesce(s.most, in_limit)
            ) f
        )
    ));
end $$;

-- Returns for each group whether this claim may visit it: 0 if the group is at its limit, 1 if another claim visits it,
-- and 2 if it may. Then no other claim visits a group that has a limit, until this transaction ends.
--
-- The lock is only tried, so that claims never wait for each other's commits. A group at its limit is not locked: each
-- lock takes an entry in the lock table that the whole server shares.
create or replace function requeue.try_groups(in_queue integer, in_turns requeue.turn[]) returns integer[]
language plpgsql as $$
begin
    -- The first number of the lock is "rqgr" in bytes.
    return array(
        select case
            when c.most is null then 2
            when c.most <= (
                select count(*) from (
                    select from requeue.keys x
                    where x.queue = in_queue and x.state = 1 and x.grp is not null and x.grp = c.name
                    limit c.most
                ) f
            ) then 0
            when pg_try_advisory_xact_lock(1920034674, hashtext(in_queue || ' ' || c.name)) then 2
            else 1
        end
        from unnest(in_turns) c
    );
end $$;

-- Chooses and locks up to `in_wanted` ready keys from groups that `may` permits (see `try_groups`), by the turns of the
-- groups. Each turn has `each` times the weight of the group, less what it has used. `quotas` has the numbers of keys that
-- the rates permit (see `try_rates`), or is null. `taken` has the keys that this claim has chosen before, and
-- `taken_groups` the groups of those whose groups have limits, or of all if `quotas` is not null.
--
-- Counts the keys in flight with another statement than `try_groups`: it sees each claim that has held the locks
-- before.
--
-- `open` and `over` have the groups that may have more keys; the turns of those in `over` are over. `short` has the groups
-- that had fewer keys than they had room for.
create or replace function requeue.visit_groups(
    in_queue integer, in_turns requeue.turn[], may integer[], quotas integer[], in_wanted integer, each bigint,
    inout taken tid[], inout taken_groups text[],
    out open requeue.turn[], out over requeue.turn[], out short requeue.turn[]
)
language plpgsql as $$
#variable_conflict use_column
declare
    here tid[];
    here_groups text[];
begin
    with room as (
        select c.*, greatest(each * c.weight - c.used, 1) as turn,
            greatest(least(greatest(each * c.weight - c.used, 1), in_wanted,
                quotas[c.n] - (select count(*) from unnest(taken_groups) b (name) where b.name = c.name), c.most
                - (select count(*) from (
                    select from requeue.keys x
                    where c.most is not null and x.queue = in_queue and x.state = 1 and x.grp is not null
                        and x.grp = c.name
                    limit c.most
                ) f)
                - (select count(*) from unnest(taken_groups) b (name) where b.name = c.name)
            ), 0) as room
        from unnest(in_turns) with ordinality as c (priority, name, used, is_next, weight, most, n)
        where may[c.n] = 2
    ), chosen as (
        select r.n, r.name, r.most, r.weight, r.used, h.id, h.at
        from room r, lateral (
            select x.ctid as id, x.at from requeue.keys x
            where x.queue = in_queue and x.state = 0 and x.is_due and x.priority = r.priority
                and x.grp is not null and x.grp = r.name and x.ctid <> all (taken)
            order by x.at limit r.room for update skip locked
        ) h
        limit in_wanted
    ), ordered as (
        select c.id, c.name, c.most, c.n,
            (c.used + row_number() over (partition by c.n order by c.at) - 1) / c.weight as turn
        from chosen c
    ), sorted as (
        select array_agg(o.id) as ids, array_agg(o.name) filter (where o.most is not null or quotas is not null) as names
        from (select * from ordered o order by o.turn, o.n) o
    ), counted as (
        select c.n, count(*) as many from chosen c group by c.n
    ), visited as (
        select r.n, r.turn, r.room, coalesce(c.many, 0) as many,
            in_wanted - coalesce(sum(c.many) over (order by r.n rows between unbounded preceding and 1 preceding), 0)
                as wanted
        from room r left join counted c using (n)
    ), done as (
        select c.n, c.priority, c.name, c.weight, c.most, v.room > v.many and v.many < v.wanted as is_short,
            -- A group that was not reached keeps its place.
            coalesce(v.wanted = 0, false) as keeps,
            coalesce(v.many = least(v.turn, v.wanted), may[c.n] = 1) as is_open,
            -- The claim may have ended before the turn.
            coalesce(v.wanted > 0 and v.many < v.turn, false) as is_cut, c.used, c.is_next, coalesce(v.many, 0) as many
        from unnest(in_turns) with ordinality as c (priority, name, used, is_next, weight, most, n)
        left join visited v using (n)
    )
    select (select i.ids from sorted i), (select i.names from sorted i),
        coalesce(array_agg(
            row(d.priority, d.name, case when d.is_cut then d.used + d.many else d.used end,
                d.is_cut or d.is_next, d.weight, d.most)::requeue.turn
            order by d.n) filter (where d.is_open and (d.keeps or d.is_cut)), '{}'),
        coalesce(array_agg(row(d.priority, d.name, 0, false, d.weight, d.most)::requeue.turn
            order by d.n) filter (where d.is_open and not (d.keeps or d.is_cut)), '{}'),
        coalesce(array_agg(row(d.priority, d.name, 0, false, 1, null)::requeue.turn) filter (where d.is_short), '{}')
    into here, here_groups, open, over, short
    from done d;
    taken := taken || here;
    taken_groups := taken_groups || here_groups;
end $$;

-- Chooses and locks up to `in_wanted` ready keys of one priority from the groups `in_turns`, in their order. Also
-- returns the groups that may have more, the groups that had fewer keys than they had room for, and whether another
-- claim kept this one from a group.
--
-- No claim exceeds the limit of a group: see `try_groups` and `visit_groups`.
create or replace function requeue.take_turns(
    in_queue integer, in_turns requeue.turn[], in_wanted integer, has_rates boolean,
    inout taken tid[], inout taken_groups text[], inout short requeue.turn[], inout is_busy boolean,
    out open requeue.turn[]
)
language plpgsql as $$
declare
    most_visited constant integer := requeue.most_decisions();
    -- The turns of each group, so that 8 groups fill the batch: see `turns_each`.
    each bigint;
    total integer := 0;
    has_limit boolean;
    wanted integer := in_wanted;
    wanted_before integer;
    before integer;
    -- A claim of one key visits one group, so that it locks no other.
    size integer := least(in_wanted, 8);
    first integer := 1;
    part requeue.turn[];
    -- The groups of the next pass.
    over requeue.turn[] := in_turns;
    may integer[];
    quotas integer[];
    locks integer := 0;
    locked integer := 0;
    visited record;
begin
    open := '{}';
    while wanted > 0 and (first > total or locked < most_visited) loop
        if first > total then
            -- The next priority waits until a pass finds no key.
            exit when cardinality(over) = 0 or wanted = wanted_before;
            in_turns := over;
            over := '{}';
            total := cardinality(in_turns);
            first := 1;
            -- This claim has locked these groups in the pass before.
            locked := 0;
            wanted_before := wanted;
            select ceil((wanted + sum(c.used) filter (where c.n <= 8))
                / greatest(1, sum(c.weight) filter (where c.n <= 8))), count(c.most) > 0
            into each, has_limit
            from unnest(in_turns) with ordinality as c (priority, name, used, is_next, weight, most, n);
        end if;
        part := in_turns[first : first + size - 1];
        first := first + cardinality(part);
        if has_limit then
            may := requeue.try_groups(in_queue, part);
            -- A group that has a limit and a rate is locked before its rate is read.
            locks := cardinality(array_positions(may, 2));
        else
            may := array_fill(2, array[cardinality(part)]);
        end if;
        if has_rates then
            select r.may, r.quotas into may, quotas from requeue.try_rates(in_queue, part, may) r;
        end if;
        if has_limit or has_rates then
            locked := locked + greatest(locks, cardinality(array_positions(may, 2)));
            is_busy := is_busy or 1 = any (may);
        end if;
        before := cardinality(taken);
        visited := requeue.visit_groups(in_queue, part, may, quotas, wanted, each, taken, taken_groups);
        taken := visited.taken;
        taken_groups := visited.taken_groups;
        open := open || visited.open;
        over := over || visited.over;
        short := short || visited.short;
        wanted := wanted - (cardinality(taken) - before);
        size := least(2 * size, most_visited);
    end loop;
    -- The rest has its turns in the next claim.
    is_busy := is_busy or wanted > 0 and first <= total;
    -- A claim that visits a priority again must give no group two turns in a row.
    open := open || in_turns[first:] || over;
end $$;

-- Returns the priority of the oldest ready key among the first keys of the groups that are below their limits.
create or replace function requeue.oldest_priority(in_queue integer, in_turns requeue.turn[]) returns integer
language plpgsql stable as $$
begin
    return (select c.priority from unnest(in_turns) c, lateral (
        select x.at from requeue.keys x
        where x.queue = in_queue and x.state = 0 and x.is_due and x.priority = c.priority
            and x.grp is not null and x.grp = c.name
        order by x.at limit 1
    ) h
    where c.most is null or c.most > (
        select count(*) from (
            select from requeue.keys x
            where x.queue = in_queue and x.state = 1 and x.grp is not null and x.grp = c.name limit c.most
        ) f
    )
    order by h.at, c.priority limit 1);
end $$;

-- Returns those of these groups that have a ready key, each with the digit of its priority: see `wake_for_groups`. Without
-- `in_all`, only those that have a limit: the completion of their keys has made room for that key.
create or replace function requeue.freed_groups(in_queue integer, in_groups text[], in_all boolean, t bigint)
returns text[]
language plpgsql as $$
begin
    return array(
        select p.priority + 1 || u.name
        from requeue.queues q
        cross join (select distinct g collate "C" as name from unnest(in_groups) g) u
        left join lateral (
            select g.most, g.paused from requeue.groups g where g.queue = in_queue and g.name = u.name limit 1
        ) s on true
        cross join generate_series(-1, 1) p (priority)
        cross join lateral (
            select from requeue.keys x
            where x.queue = in_queue and x.state = 0 and x.is_due and x.priority = p.priority
                and x.grp is not null and x.grp = u.name
            limit 1
        ) h
        where q.id = in_queue and (in_all or coalesce(s.most, q.group_limit) is not null) and s.paused is not true
    );
end $$;

-- Wakes the processes that wait for a key, if one of these groups has a limit and a ready key.
create or replace function requeue.wake_for_slots(in_queue integer, in_groups text[], t bigint) returns void
language plpgsql as $$
declare
    freed text[];
begin
    if exists (select from requeue.queues q where q.id = in_queue and q.waited_until > t) then
        freed := requeue.freed_groups(in_queue, in_groups, false, t);
        if freed <> '{}' then
            perform requeue.wake_for_groups(in_queue, freed);
        end if;
    end if;
end $$;

-- Returns the groups of those of these keys that are ready, each with the digit of the priority: see `wake_for_groups`.
create or replace function requeue.ready_groups(in_queue integer, in_keys bytea[]) returns text[]
language plpgsql as $$
begin
    return array(
        select distinct x.priority + 1 || x.grp from unnest(in_keys) a (key), lateral (
            select k.priority, k.grp from requeue.keys k
            where k.queue = in_queue and k.key = a.key and k.state = 0 and k.is_due limit 1
        ) x
    );
end $$;

-- Looks up groups of each priority, as `claim_turns` describes. Returns their names with their priorities from 1 for the
-- lowest, the last group of each priority that was looked up, or null, and whether all were.
create or replace function requeue.look_up_groups(
    in_queue integer, in_after text[], in_more integer[],
    out bands integer[], out names text[], out cursors text[], out is_complete boolean[]
)
language plpgsql stable as $$
declare
    found_here text[];
begin
    bands := '{}';
    names := '{}';
    cursors := array[null, null, null];
    for band in 1 .. 3 loop
        is_complete[band] := in_more[band] > 0;
        continue when in_more[band] = 0 or not exists (
            select from requeue.keys x
            where x.queue = in_queue and x.state = 0 and x.is_due and x.priority = band - 2 and x.grp is not null
            limit 1
        );
        found_here := requeue.next_groups(in_queue, band - 2, in_after[band], in_more[band]);
        is_complete[band] := cardinality(found_here) < in_more[band];
        cursors[band] := case when not is_complete[band] then found_here[in_more[band]] end;
        names := names || found_here;
        bands := bands || array_fill(band, array[cardinality(found_here)]);
    end loop;
end $$;

-- Returns how long a claim by turns that has found fewer keys than it wanted waits for the next one, if that is known.
-- `marked` is the number of keys that it has marked as due, and `short` has the groups that had fewer keys than they had
-- room for. `is_busy` says that another claim kept it from a group.
create or replace function requeue.next_turn(
    in_queue integer, marked integer, short requeue.turn[], is_busy boolean, t bigint
) returns bigint
language plpgsql as $$
declare
    next_at constant bigint := (
        select x.at from requeue.keys x
        where x.queue = in_queue and x.state = 0 and x.grp is not null and not x.is_due
        order by x.at limit 1
    );
    -- A key that was due and was not marked is one of too many, or is locked by another transaction.
    next_due constant bigint := case
        when next_at > t then next_at - t
        when next_at is not null and marked < 256 then 20000
        when next_at is not null then 0
    end;
begin
    return case
        when is_busy then least(next_due, 5000)
        -- Another transaction has locked a ready key, as in `claim`.
        when exists (
            select from unnest(short) c, lateral (
                select from requeue.keys x
                where x.queue = in_queue and x.state = 0 and x.is_due and x.priority = c.priority
                    and x.grp is not null and x.grp = c.name
                limit 1
            ) h
        ) then least(next_due, 20000)
        else next_due
    end;
end $$;

-- As `claim`, for a queue with groups. The groups in `in_ring` come first, each with its priority from 1 for the
-- lowest, and the number of keys that it has got in its turn. Then follow, for each priority, up to `in_more` groups
-- after `in_after`, unless it is 0. Groups have no lower bounds, so that `lows` stays as it is, except for leases.
--
-- Also returns the groups of the keys; the groups that later claims visit, as in `in_ring`, with those whose turns come
-- next (`is_next`); and for each priority the last group that was looked up, or null, and whether all were. If the
-- queue is paused, no group is visited, and the arrays of groups are empty.
create or replace function requeue.claim_turns(
    in_queue integer, in_hold boolean, in_max integer, in_oldest integer, in_lease bigint,
    in_base bigint, in_cap bigint, in_share double precision, in_most integer, in_lows bigint[],
    in_newest boolean, in_worker text,
    in_bands integer[], in_ring text[], in_used integer[], in_after text[], in_more integer[],
    out keys bytea[], out epochs bigint[], out priorities smallint[], out adds integer[],
    out reasons integer[], out failures integer[], out queued bigint[], out parked bytea[],
    out parked_failures integer[], out next_due bigint, out lows bigint[], out snapshot text,
    out is_paused boolean, out is_rated boolean, out groups text[],
    out bands integer[], out ring text[], out used integer[], out is_next boolean[],
    out cursors text[], out is_complete boolean[]
)
language plpgsql {planned} as $$
#variable_conflict use_column
declare
    t bigint := requeue.now();
    place requeue.queues;
    ended record;
    looked_up record;
    turns requeue.turn[];
    present integer[];
    rest requeue.turn[];
    -- The priorities, in the order of the visits, and the numbers of keys.
    visits integer[] := '{1, 0, -1}';
    quotas integer[] := array[in_max, in_max, in_max];
    aged integer;
    wanted integer;
    visited record;
    marked integer := 0;
    begun record;
    began constant bigint := t;
    asked constant integer := in_max;
begin
    lows := in_lows;
    select * into place from requeue.queues q where q.id = in_queue;
    if not found then
        perform requeue.check_queue(in_queue);
    end if;
    is_paused := place.paused;
    snapshot := requeue.snapshot(in_newest);
    ended := requeue.expire_leases(in_queue, in_hold, in_base, in_cap, in_share, in_most, t, lows[4]);
    lows[4] := ended.low;
    parked := ended.parked;
    parked_failures := ended.parked_failures;
    if ended.freed <> '{}' then
        perform requeue.wake_for_slots(in_queue, ended.freed, t);
    end if;

    is_rated := place.rate is not null or place.has_group_rates;
    if place.rate is not null and not is_paused then
        begun := requeue.begin_rate(in_queue, place.rate, in_max);
        in_max := begun.most;
    end if;
    turns := '{}';
    cursors := array[null, null, null];
    -- A claim that the rate of the queue holds back visits no group.
    if not is_paused and in_max > 0 then
        marked := requeue.note_due(in_queue, t);
        looked_up := requeue.look_up_groups(in_queue, in_after, in_more);
        cursors := looked_up.cursors;
        is_complete := looked_up.is_complete;
        turns := requeue.candidates(
            in_queue, place.group_limit, in_bands, in_ring, in_used, looked_up.bands, looked_up.names
        );
    end if;

    present := array(select distinct c.priority from unnest(turns) c);
    if in_oldest > 0 and cardinality(present) > 1 then
        aged := requeue.oldest_priority(in_queue, turns);
        if aged is not null then
            visits := aged || visits;
            quotas := in_oldest || quotas;
        end if;
    end if;
    select '{}'::tid[] as taken, '{}'::text[] as taken_groups, '{}'::requeue.turn[] as short, false as is_busy
    into visited;
    for n in 1 .. cardinality(visits) loop
        wanted := least(quotas[n], in_max - cardinality(visited.taken));
        continue when wanted = 0 or visits[n] <> all (present);
        rest := array(
            select row(c.priority, c.name, c.used, c.is_next, c.weight, c.most)::requeue.turn
            from unnest(turns) with ordinality as c (priority, name, used, is_next, weight, most, place)
            where c.priority = visits[n] order by c.place
        );
        continue when cardinality(rest) = 0;
        turns := array(select c from unnest(turns) c where c.priority <> visits[n]);
        visited := requeue.take_turns(in_queue, rest, wanted, place.has_group_rates, visited.taken,
            visited.taken_groups, visited.short, visited.is_busy);
        turns := turns || visited.open;
    end loop;
    select coalesce(array_agg(c.priority + 2), '{}'), coalesce(array_agg(c.name), '{}'),
        coalesce(array_agg(c.used::integer), '{}'), coalesce(array_agg(c.is_next), '{}')
    into bands, ring, used, is_next from unnest(turns) c;

    if is_rated then
        -- Not before the time of a claim that has had the right to use a rate.
        t := requeue.now();
        if place.has_group_rates and cardinality(visited.taken) > 0 then
            perform requeue.end_group_rates(in_queue, visited.taken_groups, t);
        end if;
    end if;
    select d.* into keys, epochs, priorities, adds, reasons, failures, queued, groups
    from requeue.deliver(visited.taken, t, in_lease, in_worker) d;

    if not is_paused and cardinality(keys) < in_max then
        next_due := requeue.next_turn(in_queue, marked, visited.short, visited.is_busy, t);
        if place.has_group_rates then
            next_due := least(next_due, requeue.next_by_rates(in_queue, began, t));
        end if;
    end if;
    if place.rate is not null and not is_paused then
        next_due := requeue.end_rate(
            in_queue, place.rate, asked, in_max, cardinality(keys), begun.next_at, t, next_due
        );
    end if;
end $$;

-- Changes a setting of a group, and wakes the waiting processes: 0 the limit, 1 the weight, 2 whether it is paused.
create or replace function requeue.change_group(
    in_queue integer, in_name text, in_setting integer, in_value integer
) returns void
language plpgsql {definer} set lock_timeout = '5s' as $$
begin
    perform requeue.keep_queue(in_queue);
    perform requeue.check_queue(in_queue);
    insert into requeue.groups as g (queue, name, most, weight, paused)
    values (in_queue, in_name, case in_setting when 0 then in_value end,
        case in_setting when 1 then in_value else 1 end, in_setting = 2 and in_value > 0)
    on conflict (queue, name) do update set
        most = case in_setting when 0 then excluded.most else g.most end,
        weight = case in_setting when 1 then excluded.weight else g.weight end,
        paused = case in_setting when 2 then excluded.paused else g.paused end;
    perform requeue.wake_for_groups(in_queue, array['0' || in_name, '1' || in_name, '2' || in_name]);
end $$;

-- Sets the limit of the groups that have no other one, and wakes the waiting processes.
create or replace function requeue.set_group_limit(in_queue integer, in_limit integer) returns void
language plpgsql {definer} set lock_timeout = '5s' as $$
begin
    update requeue.queues q set group_limit = in_limit where q.id = in_queue;
    perform requeue.check_queue(in_queue);
    perform requeue.wake(in_queue);
end $$;
