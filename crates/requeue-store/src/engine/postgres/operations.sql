-- The operations on keys. Each operation applies to a batch, and locks its keys in sorted order, because different
-- orders can deadlock. Each `ctid` in this file refers to a locked row. The `ctid` of a locked row does not change.

-- Tries to get the right to decide whether a lease is renewed or lost. One transaction at a time has this right, until
-- it commits.
create or replace function requeue.decides(epoch bigint) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    -- The bytes of the first number are "rqme".
    return pg_try_advisory_xact_lock(1920036197, (epoch % 2147483647)::integer);
end $$;

-- The maximum number of leases that one transaction decides on. For each lease, the transaction needs an entry in the
-- lock table of the whole server.
create or replace function requeue.most_decisions() returns integer language sql immutable return 64;

-- Returns true if a row in `renewals` extends the lease: see `renew`.
create or replace function requeue.is_renewed(in_epoch bigint, t bigint) returns boolean language sql stable
    return exists (
        select from requeue.renewals r where r.epoch = in_epoch and r.lease_until > t
    );

-- Raises the next fencing tokens to the time in microseconds since 1970, unless they are greater.
--
-- The sequence makes tokens grow, even if the clock is set back. But the sequence itself falls back in three cases:
-- when a replica is promoted without the last transactions, when a backup is restored, and after `setval`. In these
-- cases, the time is later than all lost tokens.
--
-- Most claims only read the sequence. A claim sets the sequence if it is behind the clock by more than `slack`, which
-- happens at most 20 times per second. The slack is shorter than a failover. It also makes `setval` safe, although an
-- earlier step has read the sequence: to exceed the new value, other claims would have to draw 50,000 tokens between
-- the two steps.
--
-- A lock prevents two claims from setting the sequence at the same time. If the lock lasted until the commit, claims
-- would wait for each other's commits. A lock of the session would remain after a cancelled statement. Therefore, the
-- lock is taken in a subtransaction, which is rolled back immediately. The rollback does not undo `setval`.
create or replace function requeue.raise_epochs() returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    slack constant bigint := 50000;
begin
    if (select s.last_value from requeue.epochs s) >= requeue.now() - slack then
        return;
    end if;
    begin
        -- `decides` never uses a negative number, so the two locks differ.
        perform pg_advisory_xact_lock(1920036197, -1);
        if (select s.last_value from requeue.epochs s) < requeue.now() - slack then
            perform setval('requeue.epochs', requeue.now());
        end if;
        raise sqlstate 'RQ000';
    exception when sqlstate 'RQ000' then
        null;
    end;
end $$;

-- Returns the transactions in progress that no snapshot names. Their numbers are at least `first`, and greater than the
-- number of each transaction that has ended. A transaction holds a lock on its number, and the list of locks shows the
-- lower 32 bits of that number.
create or replace function requeue.newest(first bigint) returns text language sql volatile as $$
    select coalesce(string_agg((first + n.after)::text, ','), '')
    from pg_locks l, lateral (
        select (l.transactionid::text::bigint - first % 4294967296 + 4294967296) % 4294967296 as after
    ) n
    where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and n.after < 2147483648
$$;

-- The maximum age of a transaction, in microseconds, whose keys a claim still finds below the claim's lower bounds.
create or replace function requeue.slack() returns bigint language sql immutable return 200000;

-- Returns the transactions in progress. With `in_newest`, the result names all of them. A claim calls this function
-- before it reads keys. Therefore, the claim sees all changes of transactions that the result does not name.
create or replace function requeue.snapshot(in_newest boolean) returns text
language plpgsql as $$
declare
    seen pg_snapshot := pg_current_snapshot();
begin
    return seen::text || case
        when in_newest then ':' || requeue.newest(pg_snapshot_xmax(seen)::text::bigint) else ''
    end;
end $$;

-- Counts a failure for each lease that expired at `low` or later. Returns the lower bound for the next claim, the keys
-- that this failure has parked, and the groups of all keys with expired leases.
create or replace function requeue.expire_leases(
    in_queue integer, in_hold boolean, in_base bigint, in_cap bigint, in_share double precision,
    in_most integer, t bigint, in_past boolean, inout low bigint,
    out parked bytea[], out parked_failures integer[], out freed text[]
)
language plpgsql as $$
declare
    most_expired constant integer := requeue.most_decisions();
    k requeue.keys;
    was requeue.keys;
    how smallint;
    renewed_until bigint;
    expired integer := 0;
    is_trimmed boolean := false;
    -- The step of the jitter. If several keys fail at the same time, they must not become ready at the same time: see
    -- `Failing::nth`.
    step double precision;
begin
    parked := '{}';
    parked_failures := '{}';
    freed := '{}';
    for k in
        select * from requeue.keys x
        where x.queue = in_queue and x.state = 1 and x.lease_until <= t and x.lease_until >= low
        order by x.lease_until limit most_expired for update skip locked
    loop
        expired := expired + 1;
        continue when not requeue.decides(k.epoch);
        select r.lease_until into renewed_until from requeue.renewals r
        where r.epoch = k.epoch and r.lease_until > t;
        if found then
            update requeue.keys x set lease_until = renewed_until
            where x.queue = k.queue and x.key = k.key;
            continue;
        end if;
        step := (1 - in_share) * expired;
        was := k;
        how := case when k.cancel_epoch = k.epoch then 7 else 2 end;
        k := requeue.ended(k, t, in_hold, how, null, k.run_priority, k.run_adds, k.run_flags,
            'the lease expired', in_base, in_cap, 1 - (step - floor(step)), in_most);
        if in_past then
            k.past := requeue.with_run(was, k, t, how, null, true);
        end if;
        perform requeue.keep(k, t);
        if k.failed_at is not null or was.failed_at is not null then
            perform requeue.keep_attempt(was, k, t, 'the lease expired', null, null, null);
            is_trimmed := is_trimmed or was.epoch % 128 = 0;
        end if;
        freed := freed || k.grp;
        if k.state = 2 then
            parked := parked || k.key;
            parked_failures := parked_failures || k.failures;
        end if;
    end loop;
    if is_trimmed then
        perform requeue.trim_attempts(in_queue);
    end if;
    if expired < most_expired then
        low := t - requeue.slack();
    end if;
end $$;

-- Delivers the keys that a claim has chosen and locked, in their order. Returns the arrays that `claim` describes. With
-- `in_counted`, the keys count towards the limits of their groups. `traces` has the trace contexts of the runs, and
-- `failed` the times since the last failures. An array that would contain only nulls is null.
create or replace function requeue.deliver(
    in_taken tid[], t bigint, in_lease bigint, in_worker text, in_counted boolean,
    out keys bytea[], out epochs bigint[], out priorities smallint[], out adds integer[],
    out flags integer[], out failures integer[], out queued bigint[], out groups text[],
    out traces text[], out failed bigint[]
)
language plpgsql as $$
#variable_conflict use_column
begin
    if cardinality(in_taken) > 0 then
        perform requeue.raise_epochs();
    end if;
    with claimed as (
        update requeue.keys x set state = 1, at = null, bound = null, not_before = 0, adds = 0,
            flags = 0, is_due = false, is_counted = in_counted, epoch = nextval('requeue.epochs'),
            lease_until = requeue.later(t, in_lease), run_since = t, run_adds = greatest(x.adds, 1),
            run_flags = x.flags, run_priority = x.priority, worker = in_worker,
            trace = null, run_trace = x.trace
        from unnest(in_taken) with ordinality as p (id, n)
        where x.ctid = p.id
        returning x.key, x.epoch, x.run_priority, x.run_adds, x.run_flags, x.failures,
            greatest(t - x.since, 0) as queued, x.grp, left(x.run_trace, 4096) as trace,
            case when x.failures > 0 then greatest(t - x.failed_at, 0) end as failed
    )
    select coalesce(array_agg(c.key), '{}'), coalesce(array_agg(c.epoch), '{}'),
        coalesce(array_agg(c.run_priority), '{}'), coalesce(array_agg(c.run_adds), '{}'),
        coalesce(array_agg(c.run_flags), '{}'), coalesce(array_agg(c.failures), '{}'),
        coalesce(array_agg(c.queued), '{}'), coalesce(array_agg(c.grp), '{}'),
        case when count(c.trace) > 0 then array_agg(c.trace) end,
        case when count(c.failed) > 0 then array_agg(c.failed) end
    into keys, epochs, priorities, adds, flags, failures, queued, groups, traces, failed
    from claimed c;
end $$;

-- Counts a failure for each expired lease, and then claims keys.
--
-- Skips everything below `in_lows`: the lower bounds for the low, normal and high priority, and for leases. Below these
-- bounds, the index contains entries of past deliveries. While another transaction is open, the server cannot remove
-- these entries, and each claim would read all of them. `lows` has the bounds for the next claim.
--
-- Returns one row. Its arrays have the claimed keys, their fencing tokens, the parameters of their runs, and the times
-- for which they were ready. Two more arrays have the keys that the claim has parked, because the expiry of their lease
-- was their last permitted failure. `next_due` is the time until the next key may be ready. `snapshot` names the
-- transactions that were in progress. It names all of them only with `in_newest`: see `watermark.rs`. If the queue is
-- paused, the claim only handles the expired leases.
create or replace function requeue.claim(
    in_queue integer, in_hold boolean, in_max integer, in_oldest integer, in_lease bigint,
    in_base bigint, in_cap bigint, in_share double precision, in_most integer, in_lows bigint[],
    in_newest boolean default false, in_worker text default null, in_past boolean default false,
    out keys bytea[], out epochs bigint[], out priorities smallint[], out adds integer[],
    out flags integer[], out failures integer[], out queued bigint[], out parked bytea[],
    out parked_failures integer[], out next_due bigint, out lows bigint[], out snapshot text,
    out is_paused boolean, out is_rated boolean, out traces text[], out failed bigint[]
)
language plpgsql {planned} as $$
#variable_conflict use_column
declare
    t bigint := requeue.now();
    in_rate bigint[];
    begun record;
    asked integer;
    began constant bigint := t;
    slack constant bigint := requeue.slack();
    ended record;
    eldest tid[] := '{}';
    taken tid[];
    here tid[];
    until_at bigint;
    wanted integer;
    met integer;
    next_at bigint;
begin
    lows := in_lows;
    select q.paused, q.rate into is_paused, in_rate from requeue.queues q where q.id = in_queue;
    if not found then
        perform requeue.check_queue(in_queue);
    elsif is_paused then
        in_max := 0;
        in_oldest := 0;
    end if;
    snapshot := requeue.snapshot(in_newest);
    ended := requeue.expire_leases(in_queue, in_hold, in_base, in_cap, in_share, in_most, t, in_past,
        lows[4]);
    lows[4] := ended.low;
    parked := ended.parked;
    parked_failures := ended.parked_failures;

    is_rated := in_rate is not null;
    asked := in_max;
    if is_rated and not is_paused then
        begun := requeue.begin_rate(in_queue, in_rate, in_max);
        in_max := begun.most;
        in_oldest := least(in_oldest, in_max);
        t := requeue.now();
    end if;

    if in_oldest > 0 then
        -- This search takes no locks. It finds up to three times `in_oldest` keys, and the claim does not need most of
        -- them.
        select array_agg(o.id) into here from (
            select b.id from (
                (select x.ctid as id, x.at from requeue.keys x
                 where x.queue = in_queue and x.state = 0 and x.grp is null and x.priority = -1
                     and x.at <= t and x.at >= lows[1] order by x.at limit in_oldest)
                union all
                (select x.ctid, x.at from requeue.keys x
                 where x.queue = in_queue and x.state = 0 and x.grp is null and x.priority = 0
                     and x.at <= t and x.at >= lows[2] order by x.at limit in_oldest)
                union all
                (select x.ctid, x.at from requeue.keys x
                 where x.queue = in_queue and x.state = 0 and x.grp is null and x.priority = 1
                     and x.at <= t and x.at >= lows[3] order by x.at limit in_oldest)
            ) b order by b.at limit in_oldest
        ) o;
        select coalesce(array_agg(o.id), '{}') into eldest from (
            -- (With `+ 0`, the planner cannot use the index of all ready keys.)
            select x.ctid as id from requeue.keys x
            where x.ctid = any (here) and x.queue + 0 = in_queue and x.state + 0 = 0
                and x.at + 0 <= t
            order by x.at for update skip locked
        ) o;
    end if;
    taken := eldest;
    for band in reverse 3 .. 1 loop
        wanted := in_max - cardinality(taken);
        exit when wanted = 0;
        select array_agg(o.id), max(o.at), count(*) into here, until_at, met from (
            select x.ctid as id, x.at from requeue.keys x
            where x.queue = in_queue and x.state = 0 and x.grp is null and x.priority = band - 2
                and x.at <= t and x.at >= lows[band] and x.ctid <> all (eldest)
            order by x.at limit wanted for update skip locked
        ) o;
        taken := taken || here;
        lows[band] := least(case when met = wanted then until_at else t end, began) - slack;
    end loop;

    select d.keys, d.epochs, d.priorities, d.adds, d.flags, d.failures, d.queued, d.traces, d.failed
    into keys, epochs, priorities, adds, flags, failures, queued, traces, failed
    from requeue.deliver(taken, t, in_lease, in_worker, false) d;

    if cardinality(taken) < in_max then
        select min(o.at) into next_at from generate_series(1, 3) band, lateral (
            select x.at from requeue.keys x
            where x.queue = in_queue and x.state = 0 and x.grp is null and x.priority = band - 2
                and x.at >= lows[band]
            order by x.at limit 1
        ) o;
        -- If a ready key remains, another transaction has locked it. The process claims again after 20 ms.
        next_due := case when next_at <= t then 20000 else next_at - t end;
    end if;
    if is_rated and not is_paused then
        next_due := requeue.end_rate(in_queue, in_rate, asked, in_max, cardinality(taken), begun.next_at, t, next_due);
    end if;
end $$;

-- Pauses or resumes the deliveries of a queue, and wakes the waiting processes. A claim that has already begun may
-- still deliver keys.
create or replace function requeue.set_paused(in_queue integer, in_paused boolean) returns void
language plpgsql {definer} set lock_timeout = '5s' as $$
begin
    update requeue.queues q set paused = in_paused where q.id = in_queue;
    perform requeue.check_queue(in_queue);
    perform requeue.wake(in_queue);
end $$;

-- Finds keys that claims have skipped, because a transaction in progress had added or locked them. Returns the earliest
-- ready key of each priority, and the earliest expired lease. The search begins at `in_floors` (included), and ends
-- before `in_lows`. A result is null if there is no such key or lease.
--
-- With floors of -2^63, the function scans everything below `in_lows`, clears `renewals`, and returns the time until
-- the next lease expires. This scan reads the index entries of past deliveries, which claims skip. Therefore, it does
-- not run within a claim. It locks no key, because claims skip locked keys.
create or replace function requeue.passed_over(
    in_queue integer, in_floors bigint[], in_lows bigint[], out passed bigint[], out next_lease bigint
)
language plpgsql {planned} as $$
declare
    t bigint := requeue.now();
begin
    for band in 1 .. 3 loop
        passed[band] := (
            select x.at from requeue.keys x
            where x.queue = in_queue and x.state = 0 and x.grp is null and x.priority = band - 2
                and x.at >= in_floors[band] and x.at < in_lows[band]
            order by x.at limit 1
        );
    end loop;
    passed[4] := (
        select x.lease_until from requeue.keys x
        where x.queue = in_queue and x.state = 1
            and x.lease_until >= in_floors[4] and x.lease_until < in_lows[4]
            and not requeue.is_renewed(x.epoch, t)
        order by x.lease_until limit 1
    );
    if in_floors[4] = -9223372036854775808 then
        delete from requeue.renewals x where x.ctid = any (array(
            select r.ctid from requeue.renewals r where r.lease_until <= t for update skip locked
        ));
        next_lease := (
            select x.lease_until from requeue.keys x
            where x.queue = in_queue and x.state = 1 and x.lease_until > t
            order by x.lease_until limit 1
        ) - t;
    end if;
end $$;

-- Completes deliveries. Returns the positions in the batch of the deliveries whose leases had not expired.
create or replace function requeue.finish(
    in_queue integer, in_hold boolean, ends requeue.ends, in_past boolean default false
) returns integer[]
language plpgsql {planned} as $$
declare
    t bigint := requeue.now();
    k requeue.keys;
    was requeue.keys;
    held integer[];
    gone tid[];
    again tid[];
    -- The keys that have succeeded after earlier failures.
    cured bytea[];
    -- True if this call must remove old failures.
    is_trimmed boolean := false;
    others integer[];
    -- The groups of the keys in this batch.
    freed text[];
    n integer;
    first_at bigint;
begin
    -- The commit does not wait for the disk. If a crash of the server undoes a completion, the effect on its key is
    -- that of an expired lease.
    perform set_config('synchronous_commit', 'off', true);
    -- One statement locks the keys, and a second statement changes them. Therefore, the second statement sees the
    -- changes of an add that was in progress when the first one began. (The query looks up one key at a time, without
    -- `state = 1`. Otherwise, a plan from the time when the table was small would scan the whole table, or the whole
    -- index of leases.)
    select array_agg(f.n),
        array_agg(f.id) filter (where f.how = 0 and f.at is null),
        array_agg(f.id) filter (where f.how = 0 and f.at is not null),
        array_agg(f.n) filter (where f.how <> 0),
        array_agg(f.grp) filter (where f.grp is not null),
        array_agg(f.key) filter (where f.how = 0 and f.failed_at is not null)
    into held, gone, again, others, freed, cured
    from (
        select e.n::integer, e.key, e.how, h.id, h.at, h.grp, h.failed_at
        from (
            select * from unnest(ends.keys, ends.epochs, ends.hows) with ordinality
                as b (key, epoch, how, n)
            order by b.key
        ) e, lateral (
            select x.ctid as id, x.at, x.grp, x.failed_at from requeue.keys x
            where x.queue = in_queue and x.key = e.key and x.epoch = e.epoch
                and (x.lease_until > t or requeue.is_renewed(x.epoch, t))
            for update
        ) h
    ) f;
    if gone is not null then
        delete from requeue.keys x where x.ctid = any (gone);
    end if;
    if again is not null then
        with ended as (
            update requeue.keys x set state = 0, at = greatest(x.at, t), failures = 0,
                steps = 0, until = 0, not_before = 0, error = null, failed_at = null, {no_run},
                bound = case when x.at > t then x.bound end,
                is_due = x.grp is not null and x.at <= t,
                past = case when in_past then requeue.with_run(x, x, t, 0::smallint, null, false) else x.past end
            where x.ctid = any (again)
            returning x.at
        )
        select min(e.at) into first_at from ended e;
    end if;
    if cured is not null then
        delete from requeue.attempts a where a.queue = in_queue and a.key = any (cured);
    end if;
    if others is not null then
        foreach n in array others loop
            select * into k from requeue.keys x where x.queue = in_queue and x.key = ends.keys[n];
            was := k;
            k := requeue.ended(k, t, in_hold, ends.hows[n], ends.delays[n], ends.priorities[n],
                ends.adds[n], ends.flags[n], ends.errors[n], ends.bases[n], ends.caps[n],
                ends.shares[n], ends.mosts[n]);
            if in_past then
                k.past := requeue.with_run(was, k, t, ends.hows[n], ends.tooks[n], false);
            end if;
            perform requeue.keep(k, t);
            if k.failed_at is not null or was.failed_at is not null then
                perform requeue.keep_attempt(was, k, t, ends.errors[n], ends.tooks[n], ends.statuses[n],
                    ends.outputs[n]);
                is_trimmed := is_trimmed or k.failures > was.failures and was.epoch % 128 = 0;
            end if;
            first_at := least(first_at, case when k.state = 0 then k.at end);
        end loop;
    end if;
    -- This step is the last one, so that the function waits for no key while it holds these locks.
    if is_trimmed then
        perform requeue.trim_attempts(in_queue);
    end if;
    if first_at is not null or freed is not null then
        perform requeue.wake_for_ended(in_queue, first_at, freed, t);
    end if;
    if cardinality(held) = cardinality(ends.keys) then
        return held;
    end if;
    perform requeue.check_queue(in_queue);
    return coalesce(held, '{}');
end $$;

-- Renews leases. Returns four lists of positions in the batch: the renewed leases; the leases on which another
-- transaction is deciding now; the leases that need a further transaction; and the renewed leases whose runs were
-- cancelled. While the function waited for one locked key, all other leases could expire. Therefore, the renewal for a
-- locked key is stored separately, in `renewals`.
create or replace function requeue.renew(
    in_queue integer, in_keys bytea[], in_epochs bigint[], in_lease bigint,
    out renewed integer[], out busy integer[], out rest integer[], out cancelled integer[]
)
language plpgsql {planned} as $$
declare
    t bigint := requeue.now();
    ids tid[];
    n integer;
    decisions integer := 0;
    is_cancelled boolean;
begin
    select coalesce(array_agg(f.n), '{}'), array_agg(f.id),
        coalesce(array_agg(f.n) filter (where f.is_cancelled), '{}')
    into renewed, ids, cancelled from (
        select e.n::integer, h.id, h.is_cancelled
        from (
            select * from unnest(in_keys, in_epochs) with ordinality as b (key, epoch, n)
            order by b.key
        ) e, lateral (
            select x.ctid as id, x.cancel_epoch = x.epoch as is_cancelled from requeue.keys x
            where x.queue = in_queue and x.key = e.key and x.epoch = e.epoch
                and (x.lease_until > t or requeue.is_renewed(x.epoch, t))
            for update skip locked
        ) h
    ) f;
    update requeue.keys x set lease_until = requeue.later(t, in_lease) where x.ctid = any (ids);
    busy := '{}';
    rest := '{}';
    for n in
        select e.n from generate_subscripts(in_epochs, 1) e (n) where e.n <> all (renewed)
    loop
        -- If the delivery was completed, there is no lease to decide on.
        continue when not exists (
            select from requeue.keys x
            where x.queue = in_queue and x.key = in_keys[n] and x.epoch = in_epochs[n]
        );
        if decisions = requeue.most_decisions() then
            rest := rest || n;
            continue;
        end if;
        decisions := decisions + 1;
        if not requeue.decides(in_epochs[n]) then
            busy := busy || n;
            continue;
        end if;
        -- Before this lock was free, its holder may have ended the lease. From now on, no other transaction can end it.
        select x.cancel_epoch = x.epoch into is_cancelled from requeue.keys x
        where x.queue = in_queue and x.key = in_keys[n] and x.epoch = in_epochs[n]
            and (x.lease_until > t or requeue.is_renewed(x.epoch, t));
        if found then
            insert into requeue.renewals as r (epoch, lease_until)
            values (in_epochs[n], requeue.later(t, in_lease))
            on conflict (epoch) do update set lease_until = excluded.lease_until;
            renewed := renewed || n;
            if is_cancelled then
                cancelled := cancelled || n;
            end if;
        end if;
    end loop;
    if renewed = '{}' then
        perform requeue.check_queue(in_queue);
    end if;
end $$;

-- Locks the keys among `in_keys` that exist, for a change. The function waits for the lock of a single key. In a batch
-- of several keys, it skips keys that other transactions have locked, so that they do not delay the batch. Returns the
-- positions and row IDs of the keys that it has locked, and the positions of the keys that were locked already.
create or replace function requeue.lock(
    in_queue integer, in_keys bytea[], out numbers integer[], out ids tid[], out locked integer[]
)
language plpgsql as $$
begin
    if cardinality(in_keys) = 1 then
        select array_agg(1), array_agg(f.id) into numbers, ids from (
            select x.ctid as id from requeue.keys x
            where x.queue = in_queue and x.key = in_keys[1] for update
        ) f;
    else
        select array_agg(f.n), array_agg(f.id) into numbers, ids from (
            select e.n::integer, h.id
            from (
                select * from unnest(in_keys) with ordinality as b (key, n) order by b.key
            ) e, lateral (
                select x.ctid as id from requeue.keys x
                where x.queue = in_queue and x.key = e.key for update skip locked
            ) h
        ) f;
    end if;
    numbers := coalesce(numbers, '{}');
    ids := coalesce(ids, '{}');
    locked := '{}';
    if cardinality(numbers) < cardinality(in_keys) and cardinality(in_keys) > 1 then
        select coalesce(array_agg(e.n), '{}') into locked
        from unnest(in_keys) with ordinality as e (key, n)
        where e.n <> all (numbers)
            and exists (select from requeue.keys x where x.queue = in_queue and x.key = e.key);
    end if;
end $$;

-- Cancels keys in the given state, or in any state if it is null. The states are 0 for ready, 1 for waiting, 2 for in
-- flight and 3 for parked. Returns the positions of the keys that were parked or had a pending run.
create or replace function requeue.cancel(
    in_queue integer, in_keys bytea[], in_state integer,
    out cancelled integer[], out locked integer[]
)
language plpgsql {planned} set lock_timeout = '5s' as $$
declare
    t bigint;
    held record;
    gone tid[];
    running tid[];
    -- The keys that have failures.
    failed bytea[];
begin
    held := requeue.lock(in_queue, in_keys);
    locked := held.locked;
    t := requeue.now();
    select coalesce(array_agg(f.n) filter (where f.state = 2 or f.at is not null), '{}'),
        array_agg(f.id) filter (where f.state <> 1), array_agg(f.id) filter (where f.state = 1),
        array_agg(f.key) filter (where f.failed_at is not null)
    into cancelled, gone, running, failed
    from (
        select p.n, x.key, x.ctid as id, x.state, x.at, x.failed_at,
            case
                when x.state = 1 then 2
                when x.state = 2 then 3
                when x.at <= t then 0
                else 1
            end as stands
        from unnest(held.numbers, held.ids) as p (n, id), requeue.keys x
        where x.ctid = p.id
    ) f
    where in_state is null or f.stands = in_state;
    delete from requeue.keys x where x.ctid = any (gone);
    update requeue.keys x set at = null, bound = null, adds = 0, flags = 0, failures = 0, steps = 0,
        until = 0, not_before = 0, error = null, failed_at = null, trace = null
    where x.ctid = any (running);
    if failed is not null then
        delete from requeue.attempts a where a.queue = in_queue and a.key = any (failed);
    end if;
    if cancelled = '{}' then
        perform requeue.check_queue(in_queue);
    end if;
end $$;

-- Cancels the run of a key in flight, and notifies the worker's process, which then renews the lease. Returns 0 if the
-- key is not in flight, 1 if this call has cancelled the run, and 2 if the run was cancelled before.
create or replace function requeue.cancel_running(in_queue integer, in_key bytea) returns integer
language plpgsql {definer} set lock_timeout = '5s' as $$
declare
    k requeue.keys;
begin
    select * into k from requeue.keys x where x.queue = in_queue and x.key = in_key for update;
    if not found or k.state <> 1 then
        perform requeue.check_queue(in_queue);
        return 0;
    elsif k.cancel_epoch = k.epoch then
        return 2;
    end if;
    update requeue.keys x set cancel_epoch = k.epoch where x.queue = in_queue and x.key = in_key;
    perform pg_notify('requeue_' || in_queue, 'cancel');
    return 1;
end $$;

-- Makes parked keys ready, or waiting keys if `in_state` is 1. Returns the positions in the batch of the keys that were
-- in that state.
create or replace function requeue.revive(
    in_queue integer, in_keys bytea[], in_state integer,
    out revived integer[], out locked integer[]
)
language plpgsql {planned} set lock_timeout = '5s' as $$
declare
    t bigint;
    held record;
begin
    held := requeue.lock(in_queue, in_keys);
    locked := held.locked;
    t := requeue.now();
    with changed as (
        update requeue.keys x set state = 0, at = t, since = t, failures = 0, steps = 0, until = 0,
            not_before = 0, error = null, bound = null, is_due = x.grp is not null
        from unnest(held.numbers, held.ids) as p (n, id)
        where x.ctid = p.id
            and (in_state = 3 and x.state = 2 or in_state = 1 and x.state = 0 and x.at > t)
        returning p.n
    )
    select coalesce(array_agg(c.n), '{}') into revived from changed c;
    if revived <> '{}' then
        perform requeue.wake(in_queue);
    else
        perform requeue.check_queue(in_queue);
    end if;
end $$;

-- Returns true if no key is ready, waiting or in flight. (The queries use `order by` to select the indexes, because
-- `exists` ignores the order.)
create or replace function requeue.is_idle(in_queue integer) returns boolean
language plpgsql stable {planned} as $$
begin
    perform requeue.check_queue(in_queue);
    return coalesce(
        (select x.at from requeue.keys x where x.queue = in_queue and x.state = 0 and x.grp is null
         order by x.priority, x.at limit 1),
        (select x.at from requeue.keys x where x.queue = in_queue and x.state = 0 and x.grp is not null and x.is_due
         order by x.priority, x.grp, x.at limit 1),
        (select x.at from requeue.keys x where x.queue = in_queue and x.state = 0 and x.grp is not null and not x.is_due
         order by x.at limit 1),
        (select x.lease_until from requeue.keys x where x.queue = in_queue and x.state = 1
         order by x.lease_until limit 1)
    ) is null;
end $$;
