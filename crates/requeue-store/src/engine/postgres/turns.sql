-- Claims keys from queues with groups. The groups take turns, and a claim skips a group that has reached its limit. The
-- claiming process knows which groups come next: see `Turns`.
--
-- The index `keys_turns` contains only ready keys, so groups without ready keys cost nothing. If a row is written
-- before its key is due, `is_due` is false. The first claim after the due time sets it to true.
--
-- Each search for one row has `limit 1`. Otherwise, a plan from the time when the table was small would join in another
-- order, and read the whole index. Each search for keys has the order of the index that it must use. With another
-- order, or with `exists`, which ignores the order, the search could read all keys of the queue.

-- Marks up to 256 keys whose due time has passed. Returns the number of marked keys.
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

-- Returns up to `in_count` groups that have ready keys of a priority. The groups after `in_after` come first, sorted by
-- name, and the other groups follow. Each step is a search in the index, so the cost does not depend on the number of
-- keys.
create or replace function requeue.next_groups(
    in_queue integer, in_priority integer, in_after text, in_count integer
) returns text[]
language plpgsql stable as $$
declare
    found text[];
    others text[];
    -- No name of a group is between `in_after` and this text, because names contain no control characters.
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

-- Returns the groups that a claim visits. For each priority, they are the groups of the ring, in their order, and then
-- the groups that were looked up. Omits paused groups. Also omits groups that were looked up if their limit or rate
-- permits no start. These groups then take neither places in the ring nor locks.
create or replace function requeue.candidates(
    in_queue integer, in_limit integer, ring_bands integer[], ring text[], used integer[],
    found_bands integer[], found_names text[]
) returns requeue.turn[]
language plpgsql stable as $$
declare
    t constant bigint := requeue.now();
begin
    return (select coalesce(array_agg(row(u.band - 2, u.name, u.used, u.is_next, coalesce(s.weight, 1),
            coalesce(s.most, in_limit), s.rate)::requeue.turn order by u.n), '{}')
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
                where x.queue = in_queue and x.state = 1 and x.is_counted and x.grp = u.name
                order by x.epoch limit coalesce(s.most, in_limit)
            ) f
        )
    ));
end $$;

-- Returns how many keys a claim may take from a group with a limit or a rate, up to `in_wanted`. The claim has already
-- taken `in_had` other keys from the group. If the result is greater than 0, no other claim visits the group until this
-- transaction ends. The result is null if another claim is visiting the group.
--
-- A claim that cannot get the lock does not wait, so claims never wait for each other's commits. A group that permits
-- no key is not locked, because each lock takes an entry in the lock table of the whole server. A statement that begins
-- when the lock is held sees the writes of all earlier holders.
create or replace function requeue.try_group(
    in_queue integer, c requeue.turn, in_had integer, in_wanted bigint
) returns bigint
language plpgsql as $$
declare
    room bigint := in_wanted;
begin
    for attempt in 1 .. 2 loop
        if c.most is not null then
            room := least(room, c.most - in_had - (
                select count(*) from (
                    select from requeue.keys x
                    where x.queue = in_queue and x.state = 1 and x.is_counted and x.grp = c.name
                    order by x.epoch limit c.most
                ) f
            ));
        end if;
        if c.rate is not null and room > 0 then
            room := least(room, requeue.permitted_now(in_queue, c, attempt = 2) - in_had);
        end if;
        if room <= 0 then
            return 0;
        end if;
        if attempt = 1 and not requeue.try_lock(in_queue, c.name) then
            return null;
        end if;
    end loop;
    return room;
end $$;

-- Chooses and locks up to `in_wanted` ready keys of one priority from the groups `in_turns`, in the order of their
-- turns. In one turn, a group delivers its weight times a factor, less the keys that it has already received in this
-- turn. The factor is chosen so that 8 groups fill the claim. `taken` has the keys that this claim has chosen.
-- `taken_groups` has the groups of those keys whose groups have a limit or a rate. Also returns the groups that may
-- have more keys, the groups that had fewer keys than permitted, and whether another claim was visiting a group.
create or replace function requeue.take_turns(
    in_queue integer, in_turns requeue.turn[], in_wanted integer,
    inout taken tid[], inout taken_groups text[], inout short requeue.turn[], inout is_busy boolean,
    out open requeue.turn[]
)
language plpgsql as $$
declare
    wanted integer := in_wanted;
    wanted_before integer;
    -- The factor, as in `turns_each`.
    each bigint;
    c requeue.turn;
    room bigint;
    visited integer;
    locked integer;
    -- The next statement locks the keys of several groups. These values are the position of the last of these groups,
    -- and the room and the keys per turn of each group.
    last integer;
    rooms bigint[];
    turns bigint[];
    filled bigint;
    here tid[];
    -- For each key, the position of its group among these groups.
    numbers bigint[];
    many integer;
    -- The groups whose turns are over. They are visited in the next pass.
    over requeue.turn[];
    -- The keys of this pass, in the order of the groups. For each group: the number of its keys, the number of keys
    -- that it had received before in its turn, and its weight.
    found tid[];
    counts integer[];
    used bigint[];
    weights integer[];
begin
    open := '{}';
    loop
        select ceil((wanted + sum(t.used)) / sum(t.weight)) into each
        from unnest(in_turns[:8]) t;
        wanted_before := wanted;
        visited := 0;
        locked := 0;
        over := '{}';
        found := '{}';
        counts := '{}';
        used := '{}';
        weights := '{}';
        while wanted > 0 and visited < cardinality(in_turns) and locked < requeue.most_decisions() loop
            last := visited;
            rooms := '{}';
            turns := '{}';
            filled := 0;
            while filled < wanted and last < cardinality(in_turns) and locked < requeue.most_decisions() loop
                last := last + 1;
                c := in_turns[last];
                room := greatest(each * c.weight - c.used, 1);
                turns := turns || room;
                if c.most is not null or c.rate is not null then
                    room := requeue.try_group(
                        in_queue, c, cardinality(array_positions(taken_groups, c.name)), least(room, wanted)
                    );
                    if room is null then
                        is_busy := true;
                    elsif room > 0 then
                        locked := locked + 1;
                    end if;
                end if;
                rooms := rooms || room;
                filled := filled + coalesce(room, 0);
            end loop;
            -- One statement serves all these groups, because a statement costs as much time as several keys.
            select array_agg(k.id), array_agg(k.n) into here, numbers from (
                select h.id, g.n
                from unnest(in_turns[visited + 1 : last], rooms) with ordinality
                    as g (priority, name, used, is_next, weight, most, rate, room, n),
                lateral (
                    select x.ctid as id from requeue.keys x
                    where x.queue = in_queue and x.state = 0 and x.is_due and x.priority = g.priority
                        and x.grp is not null and x.grp = g.name and x.ctid <> all (taken)
                    order by x.at limit coalesce(g.room, 0) for update skip locked
                ) h
                limit wanted
            ) k;
            found := found || here;
            for n in 1 .. cardinality(rooms) loop
                c := in_turns[visited + n];
                continue when rooms[n] = 0;
                many := coalesce(cardinality(array_positions(numbers, n)), 0);
                if rooms[n] is not null and many < least(rooms[n], wanted) then
                    short := short || c;
                end if;
                if many = turns[n] or rooms[n] is null then
                    over := over || row(c.priority, c.name, 0, false, c.weight, c.most, c.rate)::requeue.turn;
                elsif many = wanted then
                    -- The claim is full before the group's turn is over.
                    open := open
                        || row(c.priority, c.name, c.used + many, true, c.weight, c.most, c.rate)::requeue.turn;
                end if;
                continue when many = 0;
                if c.most is not null or c.rate is not null then
                    taken_groups := taken_groups || array_fill(c.name, array[many]);
                end if;
                counts := counts || many;
                used := used || c.used;
                weights := weights || c.weight;
                wanted := wanted - many;
            end loop;
            visited := last;
        end loop;
        -- Workers take the keys of a claim in this order, so the order must be that of the turns.
        if cardinality(counts) > 1 then
            select array_agg(found[g.first + k] order by (g.used + k - 1) / g.weight, g.n) into found
            from (
                select v.*, sum(v.count) over (order by v.n) - v.count as first
                from unnest(counts, used, weights) with ordinality as v (count, used, weight, n)
            ) g, generate_series(1, g.count) k;
        end if;
        taken := taken || found;
        in_turns := in_turns[visited + 1 :];
        -- The claim moves to a lower priority only after a pass that finds no key.
        exit when wanted = 0 or wanted = wanted_before or cardinality(in_turns) > 0 or cardinality(over) = 0;
        in_turns := over;
    end loop;
    -- The groups that this claim has not visited are visited by the next claim.
    is_busy := is_busy or wanted > 0 and cardinality(in_turns) > 0;
    -- A claim may visit a priority again. In this case, no group may have two consecutive turns.
    open := open || in_turns || over;
end $$;

-- Returns the priority of the oldest key, among the first ready keys of the groups that are below their limits.
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
            where x.queue = in_queue and x.state = 1 and x.is_counted and x.grp = c.name order by x.epoch limit c.most
        ) f
    )
    order by h.at, c.priority limit 1);
end $$;

-- Returns the groups in `in_groups` that have a ready key, each with the digit of the key's priority: see
-- `wake_for_groups`. Without `in_all`, the result has only groups with a limit, because the completion of their keys
-- permits a further run.
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
            order by x.at limit 1
        ) h
        where q.id = in_queue and (in_all or coalesce(s.most, q.group_limit) is not null) and s.paused is not true
    );
end $$;

-- Wakes the processes that wait for a key, after runs were completed. `first_at` is the earliest time at which a key of
-- these runs is due again, or null. `in_groups` has the groups of the keys, because a group with a limit permits a
-- further run. It is null if the queue has no groups.
create or replace function requeue.wake_for_ended(
    in_queue integer, first_at bigint, in_groups text[], t bigint
) returns void
language plpgsql as $$
declare
    waited_until constant bigint := (select q.waited_until from requeue.queues q where q.id = in_queue);
    is_soon boolean;
    freed text[];
begin
    if waited_until > t then
        is_soon := coalesce(first_at <= requeue.horizon(waited_until, t), false);
        if in_groups is not null then
            freed := requeue.freed_groups(in_queue, in_groups, is_soon, t);
        end if;
        if is_soon and in_groups is null then
            perform requeue.wake(in_queue);
        elsif is_soon or freed <> '{}' then
            perform requeue.wake_for_groups(in_queue, freed);
        end if;
    end if;
end $$;

-- Looks up groups of each priority, as `claim_turns` describes. Returns their names and their priorities (1 is the
-- lowest). Also returns, for each priority, the last group that was looked up (or null), and whether all groups were
-- looked up.
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
        continue when in_more[band] = 0 or (
            select x.grp from requeue.keys x
            where x.queue = in_queue and x.state = 0 and x.is_due and x.priority = band - 2 and x.grp is not null
            order by x.grp limit 1
        ) is null;
        found_here := requeue.next_groups(in_queue, band - 2, in_after[band], in_more[band]);
        is_complete[band] := cardinality(found_here) < in_more[band];
        cursors[band] := case when not is_complete[band] then found_here[in_more[band]] end;
        names := names || found_here;
        bands := bands || array_fill(band, array[cardinality(found_here)]);
    end loop;
end $$;

-- Returns the time until the next claim, after a claim by turns that has found too few keys. The result is null if the
-- time is not known. `marked` is the number of keys that the claim has marked as due. `short` has the groups that had
-- fewer keys than permitted. `is_busy` is true if another claim was visiting a group.
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
    -- If a due key is not marked, too many keys were due, or another transaction has locked the key.
    next_due constant bigint := case
        when next_at > t then next_at - t
        when next_at is not null and marked < 256 then 20000
        when next_at is not null then 0
    end;
begin
    return case
        when is_busy then least(next_due, 5000)
        -- If such a key exists, another transaction has locked it: see `claim`.
        when exists (
            select from unnest(short) c, lateral (
                select from requeue.keys x
                where x.queue = in_queue and x.state = 0 and x.is_due and x.priority = c.priority
                    and x.grp is not null and x.grp = c.name
                order by x.at limit 1
            ) h
        ) then least(next_due, 20000)
        else next_due
    end;
end $$;

-- Claims keys as `claim` does, in a queue with groups. The groups in `in_ring` come first, each with its priority (1 is
-- the lowest) and the number of keys that it has received in its turn. For each priority whose `in_more` is not 0, up
-- to `in_more` groups after `in_after` follow. Groups have no lower bounds, so `lows` changes only for leases.
--
-- Also returns the groups of the keys, and the groups that later claims visit, in the form of `in_ring`. `is_next`
-- marks the groups whose turns come next. Also returns, for each priority, the last group that was looked up (or null),
-- and whether all groups were looked up. If the queue is paused, no group is visited, and the arrays of groups are
-- empty.
create or replace function requeue.claim_turns(
    in_queue integer, in_hold boolean, in_max integer, in_oldest integer, in_lease bigint,
    in_base bigint, in_cap bigint, in_share double precision, in_most integer, in_lows bigint[],
    in_newest boolean, in_worker text,
    in_bands integer[], in_ring text[], in_used integer[], in_after text[], in_more integer[],
    in_past boolean default false,
    out keys bytea[], out epochs bigint[], out priorities smallint[], out adds integer[],
    out flags integer[], out failures integer[], out queued bigint[], out parked bytea[],
    out parked_failures integer[], out next_due bigint, out lows bigint[], out snapshot text,
    out is_paused boolean, out is_rated boolean, out groups text[],
    out bands integer[], out ring text[], out used integer[], out is_next boolean[],
    out cursors text[], out is_complete boolean[], out traces text[], out failed bigint[]
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
    -- The priorities in the order of the visits, and the maximum number of keys for each of them.
    visits integer[] := '{1, 0, -1}';
    quotas integer[] := array[in_max, in_max, in_max];
    aged integer;
    wanted integer;
    visited record;
    has_group_rates boolean;
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
    ended := requeue.expire_leases(in_queue, in_hold, in_base, in_cap, in_share, in_most, t, in_past,
        lows[4]);
    lows[4] := ended.low;
    parked := ended.parked;
    parked_failures := ended.parked_failures;
    if ended.freed <> '{}' then
        perform requeue.wake_for_ended(in_queue, null, ended.freed, t);
    end if;

    if place.rate is not null and not is_paused then
        begun := requeue.begin_rate(in_queue, place.rate, in_max);
        in_max := begun.most;
    end if;
    turns := '{}';
    cursors := array[null, null, null];
    -- If the rate of the queue permits no start, the claim visits no group.
    if not is_paused and in_max > 0 then
        marked := requeue.note_due(in_queue, t);
        looked_up := requeue.look_up_groups(in_queue, in_after, in_more);
        cursors := looked_up.cursors;
        is_complete := looked_up.is_complete;
        turns := requeue.candidates(
            in_queue, place.group_limit, in_bands, in_ring, in_used, looked_up.bands, looked_up.names
        );
    end if;

    -- The first rate of a group may have been set after `place` was read.
    has_group_rates := place.has_group_rates or exists (select from unnest(turns) c where c.rate is not null);
    is_rated := place.rate is not null or has_group_rates;
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
        if cardinality(present) = 1 then
            rest := turns;
            turns := '{}';
        else
            rest := array(select c from unnest(turns) c where c.priority = visits[n]);
            turns := array(select c from unnest(turns) c where c.priority <> visits[n]);
        end if;
        continue when cardinality(rest) = 0;
        visited := requeue.take_turns(in_queue, rest, wanted, visited.taken, visited.taken_groups, visited.short,
            visited.is_busy);
        turns := turns || visited.open;
    end loop;
    select coalesce(array_agg(c.priority + 2), '{}'), coalesce(array_agg(c.name), '{}'),
        coalesce(array_agg(c.used::integer), '{}'), coalesce(array_agg(c.is_next), '{}')
    into bands, ring, used, is_next from unnest(turns) c;

    if is_rated then
        -- This time is not earlier than the time of any claim that has had the right to use a rate.
        t := requeue.now();
        if has_group_rates and cardinality(visited.taken_groups) > 0 then
            perform requeue.end_group_rates(in_queue, visited.taken_groups, t);
        end if;
    end if;
    select d.* into keys, epochs, priorities, adds, flags, failures, queued, groups, traces, failed
    from requeue.deliver(
        visited.taken, t, in_lease, in_worker, place.has_group_limits or requeue.must_count(in_queue)
    ) d;

    if not is_paused and cardinality(keys) < in_max then
        next_due := requeue.next_turn(in_queue, marked, visited.short, visited.is_busy, t);
        if has_group_rates then
            next_due := least(next_due, requeue.next_by_rates(in_queue, began, t));
        end if;
    end if;
    if place.rate is not null and not is_paused then
        next_due := requeue.end_rate(
            in_queue, place.rate, asked, in_max, cardinality(keys), begun.next_at, t, next_due
        );
    end if;
end $$;

-- Marks the keys in flight of a queue when it receives its first limit, so that they count towards the limit. Without
-- limits, keys have no mark and no entry in the index `keys_of_group`. The mark and the entry would make each claim
-- more expensive.
--
-- A claim that does not mark its keys shares a lock. This function waits until no claim shares the lock, and then sees
-- the keys of these claims. While it waits, other claims mark their keys, and do not wait for the lock. If another
-- transaction keeps a key in flight locked, this function fails without a change, and the client calls it again. It
-- fails before the server looks for deadlocks, because that transaction may itself wait for a key that this function
-- has locked.
create or replace function requeue.begin_limits(in_queue integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $$
begin
    if (select q.has_group_limits from requeue.queues q where q.id = in_queue) then
        return;
    end if;
    -- The bytes of the first number are "rqli".
    perform pg_advisory_xact_lock(1920035945, in_queue);
    if (select q.has_group_limits from requeue.queues q where q.id = in_queue) then
        return;
    end if;
    -- All operations lock keys in sorted order.
    perform from requeue.keys x where x.queue = in_queue and x.state = 1 order by x.key for update;
    update requeue.keys x set is_counted = true
    where x.queue = in_queue and x.state = 1 and not x.is_counted;
    -- The row of the queue is locked last. Therefore, a process that calls `wait` does not wait for the locks of the
    -- keys.
    update requeue.queues q set has_group_limits = true where q.id = in_queue;
end $$;

-- Returns true if a claim must mark its keys. If the result is false, no limit can begin before the claim's transaction
-- ends.
create or replace function requeue.must_count(in_queue integer) returns boolean
language plpgsql as $$
begin
    -- If this lock is not free, `begin_limits` waits for it or holds it.
    if not pg_try_advisory_xact_lock_shared(1920035945, in_queue) then
        return true;
    end if;
    -- This statement sees a limit that began before this transaction got the lock.
    return (select q.has_group_limits from requeue.queues q where q.id = in_queue);
end $$;

-- Changes a setting of a group, and wakes the waiting processes. `in_setting` is 0 for the limit, 1 for the weight, and
-- 2 for the pause.
create or replace function requeue.change_group(
    in_queue integer, in_name text, in_setting integer, in_value integer
) returns void
language plpgsql {definer} set lock_timeout = '5s' as $$
begin
    perform requeue.keep_queue(in_queue);
    perform requeue.check_queue(in_queue);
    if in_setting = 0 and in_value is not null then
        perform requeue.begin_limits(in_queue);
    end if;
    insert into requeue.groups as g (queue, name, most, weight, paused)
    values (in_queue, in_name, case in_setting when 0 then in_value end,
        case in_setting when 1 then in_value else 1 end, in_setting = 2 and in_value > 0)
    on conflict (queue, name) do update set
        most = case in_setting when 0 then excluded.most else g.most end,
        weight = case in_setting when 1 then excluded.weight else g.weight end,
        paused = case in_setting when 2 then excluded.paused else g.paused end;
    perform requeue.wake_for_groups(in_queue, array['0' || in_name, '1' || in_name, '2' || in_name]);
end $$;

-- Sets the limit for groups without a separate limit, and wakes the waiting processes.
create or replace function requeue.set_group_limit(in_queue integer, in_limit integer) returns void
language plpgsql {definer} set lock_timeout = '5s' as $$
begin
    if in_limit is not null then
        perform requeue.begin_limits(in_queue);
    end if;
    update requeue.queues q set group_limit = in_limit where q.id = in_queue;
    perform requeue.check_queue(in_queue);
    perform requeue.wake(in_queue);
end $$;
