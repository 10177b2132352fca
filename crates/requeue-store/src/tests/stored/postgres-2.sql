SET check_function_bodies = false;
CREATE SCHEMA requeue;
CREATE TYPE requeue.ends AS (
	keys bytea[],
	epochs bigint[],
	hows smallint[],
	delays bigint[],
	priorities smallint[],
	adds integer[],
	reasons integer[],
	errors text[],
	bases bigint[],
	caps bigint[],
	shares double precision[],
	mosts integer[]
);
CREATE FUNCTION requeue.add(queue text, key bytea, after interval DEFAULT '00:00:00'::interval, merge text DEFAULT 'earliest'::text, priority text DEFAULT 'normal'::text, reasons integer DEFAULT 0, revive boolean DEFAULT false, debounce interval DEFAULT NULL::interval, at_most interval DEFAULT NULL::interval) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    answers smallint[] := requeue.add_each(queue, array[key],
        array[requeue.delay(coalesce(debounce, after))], array[requeue.how_number(merge, revive)],
        array[requeue.priority_number(priority)], array[reasons],
        array[requeue.longest_wait(after, debounce, at_most)]);
begin
    return (requeue.answers())[answers[1] + 1];
end $$;
CREATE FUNCTION requeue.add(queue text, key text, after interval DEFAULT '00:00:00'::interval, merge text DEFAULT 'earliest'::text, priority text DEFAULT 'normal'::text, reasons integer DEFAULT 0, revive boolean DEFAULT false, debounce interval DEFAULT NULL::interval, at_most interval DEFAULT NULL::interval) RETURNS text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN requeue.add(queue, convert_to(key, 'UTF8'::name), after, merge, priority, reasons, revive, debounce, at_most);
CREATE FUNCTION requeue.add_all(in_queue integer, in_keys bytea[], in_afters bigint[], in_hows smallint[], in_priorities smallint[], in_reasons integer[], in_adds integer[], in_mosts bigint[] DEFAULT NULL::bigint[]) RETURNS smallint[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_nestloop TO 'off'
    AS $$
declare
    -- Assigned before the clock is read: a claim that reads a later time then knows of this transaction.
    xid constant xid8 := pg_current_xact_id();
    t bigint := requeue.now();
    place requeue.queues;
    answers smallint[];
    is_due boolean;
begin
    perform requeue.keep_queue(in_queue);
    select * into place from requeue.queues q where q.id = in_queue;
    if not found then
        perform requeue.check_queue(in_queue);
    end if;
    with asked as (
        select a.* from unnest(in_keys, in_afters, in_hows, in_priorities, in_reasons, in_adds, in_mosts)
            as a (key, after, how, priority, reasons, adds, most)
    ), added as (
        insert into requeue.keys as k
            (queue, key, state, at, since, priority, reasons, adds, said, bound)
        select in_queue, a.key, 0, requeue.later(t, a.after), requeue.later(t, a.after),
            a.priority, a.reasons, a.adds, requeue.asking(a.how), requeue.later(t, a.most)
        from asked a order by a.key
        on conflict (queue, key) do update set
            (state, at, since, priority, adds, reasons, failures, steps, until, not_before, error,
             epoch, lease_until, run_since, run_adds, run_reasons, run_priority, worker, bound,
             cancel_epoch, said) = (
                select o.state, case when w.is_due then o.at else w.merged end,
                    case when w.is_due then k.since else w.merged end,
                    case
                        when o.at is null then excluded.priority
                        else greatest(k.priority, excluded.priority)
                    end,
                    least(o.adds::bigint + excluded.adds, 2147483647)::integer,
                    o.reasons | excluded.reasons,
                    case when o.anew then 0 else k.failures end,
                    case when o.anew then 0 else k.steps end,
                    case when o.anew then 0 else k.until end,
                    case when not w.is_due and w.at <= t then 0 else o.not_before end,
                    case when o.anew then null else k.error end,
                    -- No value of an unreadable row is kept.
                    case when o.is_damaged then null else k.epoch end,
                    case when o.is_damaged then null else k.lease_until end,
                    case when o.is_damaged then null else k.run_since end,
                    case when o.is_damaged then null else k.run_adds end,
                    case when o.is_damaged then null else k.run_reasons end,
                    case when o.is_damaged then null else k.run_priority end,
                    case when o.is_damaged then null else k.worker end,
                    case
                        when w.is_due or w.at <= t then null
                        when excluded.bound is not null
                            then least(excluded.bound, coalesce(o.bound, o.at))
                        when o.bound is null then null
                        when not requeue.wants_latest(excluded.said) then least(o.bound, w.at)
                        when w.at <= o.at then o.bound
                    end,
                    case when o.is_damaged then null else k.cancel_epoch end,
                    case
                        when k.state = 2 and not o.is_damaged then 6
                        when w.at > w.wanted then 3
                        when w.is_due then 1
                        when w.at <= t then case o.state when 1 then 2 else 0 end
                        when o.at is null then 0
                        else 1
                    end
                from (
                    -- The values that the key keeps. A key that starts over keeps none.
                    select b.anew, b.is_damaged,
                        case when k.state = 2 or b.is_damaged then 0 else k.state end as state,
                        case when b.anew then null else k.at end as at,
                        case when b.anew then null else k.bound end as bound,
                        case when b.anew then 0 else k.adds end as adds,
                        case when b.anew then 0 else k.reasons end as reasons,
                        case when b.anew then 0 else k.not_before end as not_before
                    from (
                        select d.is_damaged,
                            d.is_damaged or k.state = 2 or requeue.wants_exactly(excluded.said)
                                as anew
                        -- (With `offset 0`, the server checks the row once, not once for each value.)
                        from (select requeue.damage_of(k) is not null as is_damaged offset 0) d
                    ) b
                ) o, lateral (
                    -- The due time that this add requests. A debounced add postpones the run at most to
                    -- the bound.
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
        where k.state <> 2 or place.revive or requeue.wants_revival(excluded.said)
            or requeue.damage_of(k) is not null
        returning k.key, k.state, k.at, k.said
    )
    select array_agg(
            case when requeue.is_asking(a.said) then 0 else coalesce(a.said, 4) end order by i.key),
        bool_or(a.state = 0 and a.at <= requeue.horizon(place.waited_until, t)
            and (a.said <> 1 or a.at > t))
    into answers, is_due
    from asked i left join added a using (key);
    if is_due and place.waited_until > t then
        perform requeue.wake(in_queue);
    end if;
    return coalesce(answers, '{}');
end $$;
CREATE FUNCTION requeue.add_all_soon(in_queue integer, in_keys bytea[], in_afters bigint[], in_hows smallint[], in_priorities smallint[], in_reasons integer[], in_adds integer[], in_mosts bigint[] DEFAULT NULL::bigint[]) RETURNS smallint[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '100ms'
    AS $$
begin
    return requeue.add_all(in_queue, in_keys, in_afters, in_hows, in_priorities, in_reasons, in_adds,
        in_mosts);
end $$;
CREATE FUNCTION requeue.add_each(queue text, keys bytea[], afters bigint[], hows smallint[], priorities smallint[], reasons integer[], mosts bigint[] DEFAULT NULL::bigint[]) RETURNS smallint[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    id integer := (select f.id from requeue.find(queue) f);
begin
    if id is null then
        raise exception 'no such queue: %', quote_nullable(queue)
            using errcode = 'undefined_object', hint = 'select requeue.open(''...'') creates it.';
    end if;
    perform requeue.checked(k) from unnest(keys) k;
    return requeue.add_all(id, keys, afters, hows, priorities, reasons,
        array_fill(1, array[cardinality(keys)]), mosts);
end $$;
CREATE FUNCTION requeue.add_free(in_queue integer, in_keys bytea[], in_afters bigint[], in_hows smallint[], in_priorities smallint[], in_reasons integer[], in_adds integer[], in_mosts bigint[] DEFAULT NULL::bigint[]) RETURNS smallint[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '1ms'
    AS $$
declare
    half integer := cardinality(in_keys) / 2;
begin
    begin
        return requeue.add_all(in_queue, in_keys, in_afters, in_hows, in_priorities, in_reasons, in_adds,
            in_mosts);
    exception when lock_not_available then
        if half = 0 then
            return '{5}';
        end if;
    end;
    return requeue.add_free(in_queue, in_keys[:half], in_afters[:half], in_hows[:half],
            in_priorities[:half], in_reasons[:half], in_adds[:half], in_mosts[:half])
        || requeue.add_free(in_queue, in_keys[half + 1:], in_afters[half + 1:],
            in_hows[half + 1:], in_priorities[half + 1:], in_reasons[half + 1:],
            in_adds[half + 1:], in_mosts[half + 1:]);
end $$;
CREATE FUNCTION requeue.add_many(queue text, keys bytea[], after interval DEFAULT '00:00:00'::interval, merge text DEFAULT 'earliest'::text, priority text DEFAULT 'normal'::text, reasons integer DEFAULT 0, revive boolean DEFAULT false, debounce interval DEFAULT NULL::interval, at_most interval DEFAULT NULL::interval) RETURNS TABLE(new bigint, coalesced bigint, dirty bigint, held bigint, revived bigint, parked bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    different bytea[] := array(select distinct k from unnest(keys) k);
    size integer[] := array[cardinality(different)];
    answers smallint[] := requeue.add_each(queue, different,
        array_fill(requeue.delay(coalesce(debounce, after)), size),
        array_fill(requeue.how_number(merge, revive), size),
        array_fill(requeue.priority_number(priority), size), array_fill(reasons, size),
        array_fill(requeue.longest_wait(after, debounce, at_most), size));
begin
    return query
    select count(*) filter (where a.name = 'new'), count(*) filter (where a.name = 'coalesced'),
        count(*) filter (where a.name = 'dirty'), count(*) filter (where a.name = 'held'),
        count(*) filter (where a.name = 'revived'), count(*) filter (where a.name = 'parked')
    from (select (requeue.answers())[n + 1] as name from unnest(answers) n) a;
end $$;
CREATE FUNCTION requeue.add_many(queue text, keys text[], after interval DEFAULT '00:00:00'::interval, merge text DEFAULT 'earliest'::text, priority text DEFAULT 'normal'::text, reasons integer DEFAULT 0, revive boolean DEFAULT false, debounce interval DEFAULT NULL::interval, at_most interval DEFAULT NULL::interval) RETURNS TABLE(new bigint, coalesced bigint, dirty bigint, held bigint, revived bigint, parked bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return query
    select * from requeue.add_many(queue, array(select convert_to(k, 'UTF8') from unnest(keys) k),
        after, merge, priority, reasons, revive, debounce, at_most);
end $$;
CREATE FUNCTION requeue.answers() RETURNS text[]
    LANGUAGE sql IMMUTABLE
    RETURN ARRAY['new'::text, 'coalesced'::text, 'dirty'::text, 'held'::text, 'parked'::text, 'locked'::text, 'revived'::text];
CREATE FUNCTION requeue.asking(how smallint) RETURNS smallint
    LANGUAGE sql IMMUTABLE
    RETURN ((8 + how))::smallint;
CREATE FUNCTION requeue.cancel(in_queue integer, in_keys bytea[], in_state integer, OUT cancelled integer[], OUT took integer[], OUT locked integer[]) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
    t bigint;
    held record;
    gone tid[];
    running tid[];
begin
    held := requeue.lock(in_queue, in_keys);
    locked := held.locked;
    t := requeue.now();
    select coalesce(array_agg(f.n), '{}'), coalesce(array_agg(f.took), '{}'),
        array_agg(f.id) filter (where f.state <> 1 or f.stands = 4),
        array_agg(f.id) filter (where f.state = 1 and f.stands <> 4)
    into cancelled, took, gone, running
    from (
        select p.n, x.ctid as id, x.state,
            case
                when x.is_damaged then 16
                when x.state = 2 then 8
                when x.at is null then 0
                when x.at > t then 4
                when x.state = 1 then 2
                else 1
            end as took,
            case
                when x.is_damaged then 4
                when x.state = 1 then 2
                when x.state = 2 then 3
                when x.at <= t then 0
                else 1
            end as stands
        from unnest(held.numbers, held.ids) as p (n, id), lateral (
            select y.ctid, y.state, y.at, requeue.damage_of(y) is not null as is_damaged
            from requeue.keys y where y.ctid = p.id
        ) x
    ) f
    where in_state is null or f.stands = in_state;
    delete from requeue.keys x where x.ctid = any (gone);
    update requeue.keys x set at = null, bound = null, adds = 0, reasons = 0, failures = 0, steps = 0,
        until = 0, not_before = 0, error = null
    where x.ctid = any (running);
    if cancelled = '{}' then
        perform requeue.check_queue(in_queue);
    end if;
end $$;
CREATE FUNCTION requeue.cancel_running(in_queue integer, in_key bytea) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
declare
    k requeue.keys;
begin
    select * into k from requeue.keys x where x.queue = in_queue and x.key = in_key for update;
    if not found or k.state <> 1 or not requeue.is_readable(k) then
        perform requeue.check_queue(in_queue);
        return 0;
    elsif k.cancel_epoch = k.epoch then
        return 2;
    end if;
    update requeue.keys x set cancel_epoch = k.epoch where x.queue = in_queue and x.key = in_key;
    perform pg_notify('requeue_' || in_queue, 'cancel');
    return 1;
end $$;
CREATE FUNCTION requeue.check_queue(in_queue integer) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if not exists (select from requeue.queues q where q.id = in_queue) then
        raise exception 'the queue with the number % was dropped', in_queue using errcode = 'RQ001';
    end if;
end $$;
CREATE FUNCTION requeue.checked(key bytea) RETURNS bytea
    LANGUAGE plpgsql
    AS $$
begin
    if key is null then
        raise exception 'the key is null; pass a bytea or a text' using errcode = 'null_value_not_allowed';
    elsif octet_length(key) > 2048 then
        raise exception 'the key has % bytes; at most 2048 are allowed', octet_length(key)
            using errcode = 'program_limit_exceeded';
    end if;
    return key;
end $$;
CREATE FUNCTION requeue.claim(in_queue integer, in_hold boolean, in_max integer, in_oldest integer, in_lease bigint, in_base bigint, in_cap bigint, in_share double precision, in_most integer, in_lows bigint[], in_newest boolean DEFAULT false, in_worker text DEFAULT NULL::text) RETURNS TABLE(key bytea, epoch bigint, priority smallint, adds integer, reasons integer, failures integer, queued bigint, lows bigint[], snapshot text, damage text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
#variable_conflict use_column
declare
    t bigint := requeue.now();
    -- Claims find a key despite the bound if the transaction that has added it is no older than this.
    slack constant bigint := 200000;
    most_expired constant integer := requeue.most_decisions();
    k requeue.keys;
    renewed_until bigint;
    expired integer := 0;
    -- The step of the jitter, so that keys that fail at once do not become ready at the same time: see
    -- `Failing::nth`.
    step double precision;
    eldest tid[] := '{}';
    taken tid[];
    here tid[];
    until_at bigint;
    wanted integer;
    met integer;
    next_at bigint;
    bad bytea[];
    aside bytea[] := '{}';
begin
    lows := in_lows;
    -- Read this before any key, so that the claim sees all changes of the transactions that the snapshot
    -- does not name.
    snapshot := pg_current_snapshot()::text;
    if in_newest then
        snapshot := snapshot || ':'
            || requeue.newest(pg_snapshot_xmax(snapshot::pg_snapshot)::text::bigint);
    end if;
    for k in
        select * from requeue.keys x
        where x.queue = in_queue and x.state = 1 and x.lease_until <= t and x.lease_until >= lows[4]
        order by x.lease_until limit most_expired for update skip locked
    loop
        expired := expired + 1;
        if requeue.damage_of(k) is not null then
            aside := aside || k.key;
            continue;
        end if;
        continue when not requeue.decides(k.epoch);
        select r.lease_until into renewed_until from requeue.renewals r
        where r.epoch = k.epoch and r.lease_until > t;
        if found then
            update requeue.keys x set lease_until = renewed_until
            where x.queue = k.queue and x.key = k.key;
            continue;
        end if;
        step := (1 - in_share) * expired;
        k := requeue.ended(k, t, in_hold,
            case when k.cancel_epoch = k.epoch then 7 else 2 end::smallint, null, k.run_priority,
            k.run_adds, k.run_reasons, 'the lease expired', in_base, in_cap,
            1 - (step - floor(step)), in_most);
        perform requeue.keep(k);
        if k.state = 2 then
            return query select k.key, null::bigint, null::smallint, null::integer, null::integer,
                k.failures, null::bigint, null::bigint[], null::text, null::text;
        end if;
    end loop;
    if expired < most_expired then
        lows[4] := t - slack;
    end if;
    if in_oldest > 0 then
        -- Search without locks. This finds up to three times `in_oldest` keys, and the claim does not take
        -- most of them.
        select array_agg(o.id) into here from (
            select b.id from (
                (select x.ctid as id, x.at from requeue.keys x
                 where x.queue = in_queue and x.state = 0 and x.priority = -1
                     and x.at <= t and x.at >= lows[1] order by x.at limit in_oldest)
                union all
                (select x.ctid, x.at from requeue.keys x
                 where x.queue = in_queue and x.state = 0 and x.priority = 0
                     and x.at <= t and x.at >= lows[2] order by x.at limit in_oldest)
                union all
                (select x.ctid, x.at from requeue.keys x
                 where x.queue = in_queue and x.state = 0 and x.priority = 1
                     and x.at <= t and x.at >= lows[3] order by x.at limit in_oldest)
            ) b order by b.at limit in_oldest
        ) o;
        select coalesce(array_agg(o.id) filter (where not o.bad), '{}'),
            array_agg(o.key) filter (where o.bad)
        into eldest, bad from (
            -- (`+ 0`: prevents the planner from using the index of all ready keys.)
            select x.ctid as id, x.key, requeue.damage_of(x) is not null as bad
            from requeue.keys x
            where x.ctid = any (here) and x.queue + 0 = in_queue and x.state + 0 = 0
                and x.at + 0 <= t
            order by x.at for update skip locked
        ) o;
        aside := aside || bad;
    end if;
    taken := eldest;
    for band in reverse 3 .. 1 loop
        wanted := in_max - cardinality(taken);
        exit when wanted = 0;
        select array_agg(o.id) filter (where not o.bad), max(o.at), count(*),
            array_agg(o.key) filter (where o.bad)
        into here, until_at, met, bad from (
            select x.ctid as id, x.at, x.key, requeue.damage_of(x) is not null as bad
            from requeue.keys x
            where x.queue = in_queue and x.state = 0 and x.priority = band - 2
                and x.at <= t and x.at >= lows[band] and x.ctid <> all (eldest)
            order by x.at limit wanted for update skip locked
        ) o;
        taken := taken || here;
        aside := aside || bad;
        lows[band] := case when met = wanted then greatest(until_at, 0) else t end - slack;
    end loop;
    if cardinality(taken) > 0 then
        perform requeue.raise_epochs();
    else
        perform requeue.check_queue(in_queue);
    end if;
    return query
    update requeue.keys x set state = 1, at = null, bound = null, not_before = 0, adds = 0, reasons = 0,
        epoch = nextval('requeue.epochs'), lease_until = requeue.later(t, in_lease), run_since = t,
        run_adds = greatest(x.adds, 1), run_reasons = x.reasons, run_priority = x.priority,
        worker = in_worker
    from unnest(taken) with ordinality as p (id, n)
    where x.ctid = p.id
    returning x.key, x.epoch, x.run_priority, x.run_adds, x.run_reasons, x.failures,
        greatest(t - x.since, 0), null::bigint[], null::text, null::text;
    if aside <> '{}' then
        return query
        select distinct on (b.key) b.key, null::bigint, null::smallint, null::integer, null::integer,
            null::integer, null::bigint, null::bigint[], null::text,
            requeue.set_aside(in_queue, b.key)
        from (select distinct a.key from unnest(aside) a (key)) b;
    end if;
    if cardinality(taken) < in_max then
        select min(o.at) into next_at from (
            (select x.at from requeue.keys x where x.queue = in_queue and x.state = 0
                 and x.priority = -1 and x.at >= lows[1] order by x.at limit 1)
            union all
            (select x.at from requeue.keys x where x.queue = in_queue and x.state = 0
                 and x.priority = 0 and x.at >= lows[2] order by x.at limit 1)
            union all
            (select x.at from requeue.keys x where x.queue = in_queue and x.state = 0
                 and x.priority = 1 and x.at >= lows[3] order by x.at limit 1)
        ) o;
        -- A ready key is locked by another transaction. Claim again soon to see whether it is still ready.
        queued := case when next_at <= t then 20000 else next_at - t end;
    else
        queued := null;
    end if;
    key := null;
    return next;
end $$;
CREATE FUNCTION requeue.damage(state smallint, priority smallint, at bigint, since bigint, until bigint, not_before bigint, adds integer, reasons integer, failures integer, steps integer, epoch bigint, lease_until bigint, run_since bigint, run_priority smallint, run_adds integer, run_reasons integer, worker text, bound bigint, cancel_epoch bigint) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (((state >= 0) AND (state <= 2)) IS NOT TRUE) THEN ('state is '::text || COALESCE((state)::text, 'null'::text)) WHEN (((priority >= '-1'::integer) AND (priority <= 1)) IS NOT TRUE) THEN ('priority is '::text || COALESCE((priority)::text, 'null'::text)) WHEN ((((at >= 0) AND (state <> 2)) OR ((at IS NULL) AND (state <> 0))) IS NOT TRUE) THEN ('at is '::text || COALESCE((at)::text, 'null'::text)) WHEN ((since >= 0) IS NOT TRUE) THEN ('since is '::text || COALESCE((since)::text, 'null'::text)) WHEN ((until >= 0) IS NOT TRUE) THEN ('until is '::text || COALESCE((until)::text, 'null'::text)) WHEN ((not_before >= 0) IS NOT TRUE) THEN ('not_before is '::text || COALESCE((not_before)::text, 'null'::text)) WHEN ((adds >= 0) IS NOT TRUE) THEN ('adds is '::text || COALESCE((adds)::text, 'null'::text)) WHEN ((reasons IS NOT NULL) IS NOT TRUE) THEN ('reasons is '::text || COALESCE((reasons)::text, 'null'::text)) WHEN ((failures >= 0) IS NOT TRUE) THEN ('failures is '::text || COALESCE((failures)::text, 'null'::text)) WHEN ((steps >= 0) IS NOT TRUE) THEN ('steps is '::text || COALESCE((steps)::text, 'null'::text)) WHEN (bound < 0) THEN ('bound is '::text || (bound)::text) WHEN (cancel_epoch <= 0) THEN ('cancel_epoch is '::text || (cancel_epoch)::text) WHEN (state <> 1) THEN CASE WHEN (epoch IS NOT NULL) THEN ('epoch is '::text || (epoch)::text) ELSE NULL::text END WHEN ((epoch > 0) IS NOT TRUE) THEN ('epoch is '::text || COALESCE((epoch)::text, 'null'::text)) WHEN ((lease_until >= 0) IS NOT TRUE) THEN ('lease_until is '::text || COALESCE((lease_until)::text, 'null'::text)) WHEN ((run_since >= 0) IS NOT TRUE) THEN ('run_since is '::text || COALESCE((run_since)::text, 'null'::text)) WHEN (((run_priority >= '-1'::integer) AND (run_priority <= 1)) IS NOT TRUE) THEN ('run_priority is '::text || COALESCE((run_priority)::text, 'null'::text)) WHEN ((run_adds >= 0) IS NOT TRUE) THEN ('run_adds is '::text || COALESCE((run_adds)::text, 'null'::text)) WHEN ((run_reasons IS NOT NULL) IS NOT TRUE) THEN ('run_reasons is '::text || COALESCE((run_reasons)::text, 'null'::text)) WHEN ((octet_length(worker) > 100) OR (worker ~ '[\u0001-\u001f\u007f-\u009f]'::text)) THEN 'worker is not valid'::text ELSE NULL::text END;
CREATE TABLE requeue.keys (
    queue integer NOT NULL,
    state smallint NOT NULL,
    priority smallint NOT NULL,
    at bigint,
    since bigint NOT NULL,
    until bigint DEFAULT 0 NOT NULL,
    not_before bigint DEFAULT 0 NOT NULL,
    adds integer NOT NULL,
    reasons integer NOT NULL,
    failures integer DEFAULT 0 NOT NULL,
    steps integer DEFAULT 0 NOT NULL,
    epoch bigint,
    lease_until bigint,
    run_since bigint,
    run_adds integer,
    run_reasons integer,
    run_priority smallint,
    said smallint NOT NULL,
    key bytea NOT NULL,
    error text,
    worker text,
    bound bigint,
    cancel_epoch bigint
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');
CREATE FUNCTION requeue.damage_of(k requeue.keys) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN requeue.damage((k).state, (k).priority, (k).at, (k).since, (k).until, (k).not_before, (k).adds, (k).reasons, (k).failures, (k).steps, (k).epoch, (k).lease_until, (k).run_since, (k).run_priority, (k).run_adds, (k).run_reasons, (k).worker, (k).bound, (k).cancel_epoch);
CREATE FUNCTION requeue.decides(epoch bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    -- The first number is "rque" in bytes.
    return pg_try_advisory_xact_lock(1920036197, (epoch % 2147483647)::integer);
end $$;
CREATE FUNCTION requeue.delay(after interval) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN (GREATEST(ceil((EXTRACT(epoch FROM after) * (1000000)::numeric)), (0)::numeric))::bigint;
CREATE FUNCTION requeue.demanded(k requeue.keys, wanted bigint, t bigint) RETURNS requeue.keys
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION requeue.drop_queue(name text, force boolean DEFAULT false, OUT dropped boolean, OUT ready bigint, OUT waiting bigint, OUT processing bigint, OUT dirty bigint, OUT parked bigint, OUT damaged bigint) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
declare
    in_queue integer := (select f.id from requeue.find(name) f);
    t bigint := requeue.now();
    -- Take the lock only if it is needed: while this waits for the lock, adds wait too.
    is_locked boolean := force or not exists (select from requeue.keys x where x.queue = in_queue);
begin
    if in_queue is null then
        return;
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        -- The count must include the adds that this has waited for.
        raise exception 'requeue.drop_queue needs the isolation level read committed'
            using errcode = 'feature_not_supported';
    end if;
    loop
        if is_locked then
            perform pg_advisory_xact_lock(1920037237, in_queue);
            if not exists (select from requeue.queues q where q.id = in_queue) then
                -- Another transaction has dropped the queue.
                return;
            end if;
            if force then
                -- Lock in the same order as all others: batches in different orders deadlock.
                perform from requeue.keys x where x.queue = in_queue order by x.key for update;
            end if;
        end if;
        select count(*) filter (where x.state = 0 and x.at <= t),
            count(*) filter (where x.state = 0 and x.at > t),
            count(*) filter (where x.state = 1),
            count(*) filter (where x.state = 1 and x.at <= t),
            count(*) filter (where x.state = 2),
            count(*) filter (where x.state is null)
        into ready, waiting, processing, dirty, parked, damaged
        from (
            -- (With `offset 0`, the server checks each row once.)
            select case when requeue.is_readable(k) then k.state end as state, k.at
            from requeue.keys k where k.queue = in_queue offset 0
        ) x;
        dropped := force or ready + waiting + processing + parked + damaged = 0;
        if not dropped then
            return;
        end if;
        -- The keys that were found have been deleted. Without the lock, adds in progress may insert others.
        exit when is_locked;
        is_locked := true;
    end loop;
    delete from requeue.renewals r using requeue.keys x
    where x.queue = in_queue and x.state = 1 and r.epoch = x.epoch;
    delete from requeue.keys x where x.queue = in_queue;
    delete from requeue.queues q where q.id = in_queue;
    perform requeue.wake(in_queue);
end $$;
CREATE FUNCTION requeue.ended(k requeue.keys, t bigint, hold boolean, how smallint, delay bigint, in_priority smallint, in_adds integer, in_reasons integer, in_error text, base bigint, cap bigint, share double precision, most integer) RETURNS requeue.keys
    LANGUAGE plpgsql
    AS $$
declare
    wait bigint;
    wanted bigint;
    place bigint := greatest(k.run_since - delay, 0);
begin
    if how < 2 then
        k := requeue.forgotten(k);
    elsif how = 5 then
        k := requeue.noted(k, in_priority, in_adds, in_reasons);
        k := requeue.demanded(k, greatest(k.not_before, t), t);
    elsif how = 6 then
        k := requeue.noted(k, in_priority, in_adds, in_reasons);
    elsif how < 5 then
        k.failures := least(k.failures::bigint + 1, 2147483647);
        k.error := in_error;
        k := requeue.noted(k, in_priority, in_adds, in_reasons);
        if how = 3 then
            wait := delay;
        elsif how = 2 and t < k.until then
            -- A failure during the backoff of the previous one is not counted.
            wait := k.until - t;
        elsif how = 2 then
            if requeue.later(requeue.later(k.until, cap), cap) < t then
                k.steps := 0;
            end if;
            -- The cap is 9e18: a bigint cannot hold every number of microseconds that a double can.
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
                -- The key was added during the run, so its failures are forgotten.
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
    k.epoch := null;
    k.lease_until := null;
    k.run_since := null;
    k.run_adds := null;
    k.run_reasons := null;
    k.run_priority := null;
    k.worker := null;
    k.cancel_epoch := null;
    if how = 6 then
        -- Adds during the delivery have coalesced, as for any ready key.
        k.at := place;
        k.since := place;
        k.bound := null;
    elsif k.at <= t then
        -- The key becomes the last of the ready keys. `since` keeps the time of the add.
        k.at := t;
        k.bound := null;
    end if;
    if how = 1 then
        k := requeue.noted(k, in_priority, 1, 0);
        k := requeue.demanded(k, requeue.later(t, delay), t);
    end if;
    return k;
end $$;
CREATE TABLE requeue.queues (
    id integer NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    hold boolean NOT NULL,
    revive boolean DEFAULT true NOT NULL,
    waited_until bigint DEFAULT 0 NOT NULL,
    CONSTRAINT queues_waited_until_check CHECK ((waited_until >= 0))
);
CREATE FUNCTION requeue.find(name text) RETURNS TABLE(id integer, holds boolean, revives boolean)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    BEGIN ATOMIC
 SELECT q.id,
     q.hold,
     q.revive
    FROM requeue.queues q
   WHERE (q.name = find.name);
END;
CREATE FUNCTION requeue.finish(in_queue integer, in_hold boolean, ends requeue.ends) RETURNS integer[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
    t bigint := requeue.now();
    k requeue.keys;
    held integer[];
    gone tid[];
    again tid[];
    others integer[];
    n integer;
    first_at bigint;
begin
    -- If a crash of the server undoes a completion, the effect is that of an expired lease.
    perform set_config('synchronous_commit', 'off', true);
    -- First lock, then change with another statement. The second statement sees the changes of an add that
    -- was in progress when this one began. (One key at a time, and without `state = 1`: a plan made while
    -- the table was small would scan the whole table, or the index of leases.)
    select array_agg(f.n),
        array_agg(f.id) filter (where f.how = 0 and f.at is null),
        array_agg(f.id) filter (where f.how = 0 and f.at is not null),
        array_agg(f.n) filter (where f.how <> 0)
    into held, gone, again, others
    from (
        select e.n::integer, e.how, h.id, h.at
        from (
            select * from unnest(ends.keys, ends.epochs, ends.hows) with ordinality
                as b (key, epoch, how, n)
            order by b.key
        ) e, lateral (
            select x.ctid as id, x.at from requeue.keys x
            where x.queue = in_queue and x.key = e.key and x.epoch = e.epoch
                and (x.lease_until > t or requeue.is_renewed(x.epoch, t))
                and requeue.is_readable(x)
            for update
        ) h
    ) f;
    if gone is not null then
        delete from requeue.keys x where x.ctid = any (gone);
    end if;
    if again is not null then
        with ended as (
            update requeue.keys x set state = 0, at = greatest(x.at, t), failures = 0,
                steps = 0, until = 0, not_before = 0, error = null, epoch = null,
                lease_until = null, run_since = null, run_adds = null, run_reasons = null,
                run_priority = null, worker = null, cancel_epoch = null,
                bound = case when x.at > t then x.bound end
            where x.ctid = any (again)
            returning x.at
        )
        select min(e.at) into first_at from ended e;
    end if;
    if others is not null then
        foreach n in array others loop
            select * into k from requeue.keys x where x.queue = in_queue and x.key = ends.keys[n];
            k := requeue.ended(k, t, in_hold, ends.hows[n], ends.delays[n], ends.priorities[n],
                ends.adds[n], ends.reasons[n], ends.errors[n], ends.bases[n], ends.caps[n],
                ends.shares[n], ends.mosts[n]);
            perform requeue.keep(k);
            first_at := least(first_at, case when k.state = 0 then k.at end);
        end loop;
    end if;
    if first_at is not null and exists (
        select from requeue.queues q where q.id = in_queue and q.waited_until > t
            and first_at <= requeue.horizon(q.waited_until, t)
    ) then
        perform requeue.wake(in_queue);
    end if;
    if cardinality(held) = cardinality(ends.keys) then
        return held;
    end if;
    perform requeue.check_queue(in_queue);
    return coalesce(held, '{}');
end $$;
CREATE FUNCTION requeue.finish_free(in_queue integer, in_hold boolean, ends requeue.ends, OUT held integer[], OUT locked integer[]) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '1ms'
    AS $$
declare
    many integer := cardinality(ends.keys);
    half integer := many / 2;
    -- The results of the first and the second half. The numbers in `those` count from the start of the second
    -- half.
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
CREATE FUNCTION requeue.finish_soon(in_queue integer, in_hold boolean, ends requeue.ends) RETURNS integer[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '100ms'
    AS $$
begin
    return requeue.finish(in_queue, in_hold, ends);
end $$;
CREATE FUNCTION requeue.forgotten(k requeue.keys) RETURNS requeue.keys
    LANGUAGE plpgsql
    AS $$
begin
    k.failures := 0;
    k.steps := 0;
    k.until := 0;
    k.not_before := 0;
    k.error := null;
    return k;
end $$;
CREATE FUNCTION requeue.horizon(waited_until bigint, t bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
    select greatest(t + 1500000, waited_until - 10000000)
$$;
CREATE FUNCTION requeue.how_number(merge text, revive boolean) RETURNS smallint
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    how integer := array_position(array['earliest', 'latest', 'exactly'], merge) - 1;
begin
    if how is null then
        raise exception 'invalid merge %: use earliest, latest or exactly', quote_nullable(merge)
            using errcode = 'invalid_parameter_value';
    end if;
    return how + case when revive then 4 else 0 end;
end $$;
CREATE FUNCTION requeue.is_asking(said smallint) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN (said >= 8);
CREATE FUNCTION requeue.is_idle(in_queue integer) RETURNS boolean
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
begin
    perform requeue.check_queue(in_queue);
    return not exists (
            select from requeue.keys x
            where x.queue = in_queue and x.state = 0 and requeue.is_readable(x)
        ) and not exists (
            select from requeue.keys x
            where x.queue = in_queue and x.state = 1 and requeue.is_readable(x)
        );
end $$;
CREATE FUNCTION requeue.is_readable(k requeue.keys) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (requeue.damage_of(k) IS NULL) THEN true ELSE false END;
CREATE TABLE requeue.renewals (
    epoch bigint NOT NULL,
    lease_until bigint NOT NULL
);
CREATE FUNCTION requeue.is_renewed(in_epoch bigint, t bigint) RETURNS boolean
    LANGUAGE sql STABLE
    RETURN (EXISTS (SELECT FROM requeue.renewals r WHERE ((r.epoch = is_renewed.in_epoch) AND (r.lease_until > is_renewed.t))));
CREATE FUNCTION requeue.keep(k requeue.keys) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
    if k.state = 0 and k.at is null then
        delete from requeue.keys x where x.queue = k.queue and x.key = k.key;
    else
        update requeue.keys x set state = k.state, priority = k.priority, at = k.at,
            since = k.since, until = k.until, not_before = k.not_before, adds = k.adds,
            reasons = k.reasons, failures = k.failures, steps = k.steps, epoch = k.epoch,
            lease_until = k.lease_until, run_since = k.run_since, run_adds = k.run_adds,
            run_reasons = k.run_reasons, run_priority = k.run_priority, worker = k.worker,
            error = k.error, bound = k.bound, cancel_epoch = k.cancel_epoch
        where x.queue = k.queue and x.key = k.key;
    end if;
end $$;
CREATE FUNCTION requeue.keep_queue(in_queue integer) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    -- The first number is "rqqu" in bytes.
    perform pg_advisory_xact_lock_shared(1920037237, in_queue);
    if current_setting('transaction_isolation') <> 'read committed' then
        -- A snapshot from before the drop still contains the queue. In that case this statement fails
        -- (40001).
        perform from requeue.queues q where q.id = in_queue for key share;
    end if;
end $$;
CREATE FUNCTION requeue.later(at bigint, micros bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (micros > ('9223372036854775807'::bigint - at)) THEN '9223372036854775807'::bigint ELSE (at + micros) END;
CREATE FUNCTION requeue.lock(in_queue integer, in_keys bytea[], OUT numbers integer[], OUT ids tid[], OUT locked integer[]) RETURNS record
    LANGUAGE plpgsql
    AS $$
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
CREATE FUNCTION requeue.longest_wait(after interval, debounce interval, at_most interval) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
    if after <> '0' and debounce is not null then
        raise exception 'an add has either a delay or debounce: omit one of them'
            using errcode = 'invalid_parameter_value';
    elsif at_most is not null and debounce is null then
        raise exception 'at_most needs debounce' using errcode = 'invalid_parameter_value';
    elsif requeue.delay(debounce) > 0 then
        return case
            when at_most is null then 9223372036854775807
            else greatest(requeue.delay(at_most), requeue.delay(debounce))
        end;
    end if;
    return null;
end $$;
CREATE FUNCTION requeue.most_decisions() RETURNS integer
    LANGUAGE sql IMMUTABLE
    RETURN 64;
CREATE FUNCTION requeue.newest(first bigint) RETURNS text
    LANGUAGE sql
    AS $$
    select coalesce(string_agg((first + n.after)::text, ','), '')
    from pg_locks l, lateral (
        select (l.transactionid::text::bigint - first % 4294967296 + 4294967296) % 4294967296 as after
    ) n
    where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and n.after < 2147483648
$$;
CREATE FUNCTION requeue.noted(k requeue.keys, in_priority smallint, in_adds integer, in_reasons integer) RETURNS requeue.keys
    LANGUAGE plpgsql
    AS $$
begin
    k.priority := case when k.at is null then in_priority else greatest(k.priority, in_priority) end;
    k.adds := least(k.adds::bigint + in_adds, 2147483647);
    k.reasons := k.reasons | in_reasons;
    return k;
end $$;
CREATE FUNCTION requeue.now() RETURNS bigint
    LANGUAGE sql
    RETURN ((EXTRACT(epoch FROM clock_timestamp()) * (1000000)::numeric))::bigint;
CREATE FUNCTION requeue.open(name text, hold boolean DEFAULT true, revive boolean DEFAULT true, OUT id integer, OUT holds boolean, OUT revives boolean) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
begin
    select f.id, f.holds, f.revives into open.id, open.holds, open.revives
    from requeue.find(open.name) f;
    if not found then
        insert into requeue.queues (name, hold, revive) values (open.name, open.hold, open.revive)
        on conflict do nothing;
        select f.id, f.holds, f.revives into open.id, open.holds, open.revives
        from requeue.find(open.name) f;
    end if;
end $$;
CREATE FUNCTION requeue.part(ends requeue.ends, first integer, last integer) RETURNS requeue.ends
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
    return row(
        ends.keys[first:last], ends.epochs[first:last], ends.hows[first:last],
        ends.delays[first:last], ends.priorities[first:last], ends.adds[first:last],
        ends.reasons[first:last], ends.errors[first:last], ends.bases[first:last],
        ends.caps[first:last], ends.shares[first:last], ends.mosts[first:last]
    )::requeue.ends;
end $$;
CREATE FUNCTION requeue.passed_over(in_queue integer, in_floors bigint[], in_lows bigint[], OUT passed bigint[], OUT next_lease bigint) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
    t bigint := requeue.now();
begin
    for band in 1 .. 3 loop
        passed[band] := (
            select x.at from requeue.keys x
            where x.queue = in_queue and x.state = 0 and x.priority = band - 2
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
CREATE FUNCTION requeue.priority_number(priority text) RETURNS smallint
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    number integer := array_position(array['low', 'normal', 'high'], priority) - 2;
begin
    if number is null then
        raise exception 'invalid priority %: use low, normal or high', quote_nullable(priority)
            using errcode = 'invalid_parameter_value';
    end if;
    return number;
end $$;
CREATE FUNCTION requeue.raise_epochs() RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    slack constant bigint := 50000;
begin
    if (select s.last_value from requeue.epochs s) >= requeue.now() - slack then
        return;
    end if;
    begin
        -- `decides` never uses a negative number.
        perform pg_advisory_xact_lock(1920036197, -1);
        if (select s.last_value from requeue.epochs s) < requeue.now() - slack then
            perform setval('requeue.epochs', requeue.now());
        end if;
        raise sqlstate 'RQ000';
    exception when sqlstate 'RQ000' then
        null;
    end;
end $$;
CREATE FUNCTION requeue.renew(in_queue integer, in_keys bytea[], in_epochs bigint[], in_lease bigint, OUT renewed integer[], OUT busy integer[], OUT rest integer[], OUT cancelled integer[]) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
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
                and requeue.is_readable(x)
            for update skip locked
        ) h
    ) f;
    update requeue.keys x set lease_until = requeue.later(t, in_lease) where x.ctid = any (ids);
    busy := '{}';
    rest := '{}';
    for n in
        select e.n from generate_subscripts(in_epochs, 1) e (n) where e.n <> all (renewed)
    loop
        -- A completed delivery needs no decision.
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
        -- An earlier holder of the lock may have taken the key away. From here on, no transaction can.
        select x.cancel_epoch = x.epoch into is_cancelled from requeue.keys x
        where x.queue = in_queue and x.key = in_keys[n] and x.epoch = in_epochs[n]
            and (x.lease_until > t or requeue.is_renewed(x.epoch, t))
            and requeue.is_readable(x);
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
CREATE FUNCTION requeue.revive(in_queue integer, in_keys bytea[], OUT revived integer[], OUT locked integer[]) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
    t bigint;
    held record;
begin
    held := requeue.lock(in_queue, in_keys);
    locked := held.locked;
    t := requeue.now();
    with changed as (
        update requeue.keys x set state = 0, at = t, since = t, failures = 0, steps = 0, until = 0,
            not_before = 0, error = null
        from unnest(held.numbers, held.ids) as p (n, id)
        where x.ctid = p.id and x.state = 2 and requeue.is_readable(x)
        returning p.n
    )
    select coalesce(array_agg(c.n), '{}') into revived from changed c;
    if revived <> '{}' then
        perform requeue.wake(in_queue);
    else
        perform requeue.check_queue(in_queue);
    end if;
end $$;
CREATE FUNCTION requeue.set_aside(in_queue integer, in_key bytea) RETURNS text
    LANGUAGE plpgsql
    AS $$
declare
    k requeue.keys;
    why text;
begin
    select * into k from requeue.keys x where x.queue = in_queue and x.key = in_key;
    why := requeue.damage_of(k);
    -- The text of a whole row can exceed the limit of 1 GB, which would fail all claims.
    k.error := left(k.error, 1000);
    k.worker := left(k.worker, 1000);
    update requeue.keys x set state = 3, priority = 0, at = null, since = requeue.now(), until = 0,
        not_before = 0, adds = 0, reasons = 0, failures = 0, steps = 0, epoch = null,
        lease_until = null, run_since = null, run_adds = null, run_reasons = null,
        run_priority = null, worker = null, bound = null, cancel_epoch = null,
        error = why || '; the row was ' || left(k::text, 2000)
    where x.queue = in_queue and x.key = in_key;
    return why;
end $$;
CREATE FUNCTION requeue.wait(in_queue integer, in_time bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '5s'
    AS $$
declare
    -- Answers and timers may be 1 s late.
    said_until bigint := requeue.now() + in_time + 1000000
        + case when in_time > 5500000 then 10000000 else 0 end;
begin
    -- Adds another 5 s, so that not every waiting process writes the row. The total is 11.5 s for most
    -- processes.
    update requeue.queues set waited_until = said_until + 5000000
    where id = in_queue and waited_until < said_until;
end $$;
CREATE FUNCTION requeue.wake(in_queue integer) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
    perform pg_notify('requeue_' || in_queue, '');
end $$;
CREATE FUNCTION requeue.wants_exactly(said smallint) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN (((said)::integer & 3) = 2);
CREATE FUNCTION requeue.wants_latest(said smallint) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN (((said)::integer & 3) = 1);
CREATE FUNCTION requeue.wants_revival(said smallint) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN (((said)::integer & 4) = 4);
CREATE SEQUENCE requeue.epochs
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER TABLE requeue.queues ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME requeue.queues_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE requeue.version (
    version integer NOT NULL
);
INSERT INTO requeue.keys VALUES (1, 1, 0, NULL, 1795428432001399, 0, 0, 0, 0, 0, 0, 1795428432043330, 4949028000000000, 1795428432040286, 1, 0, 0, 8, '\x696e2d666c69676874', NULL, 'vm:18075', NULL, NULL);
INSERT INTO requeue.keys VALUES (1, 1, 0, 1795428437076776, 1795428437076776, 0, 0, 1, 0, 0, 0, 1795428435078158, 4949028000000000, 1795428435075127, 1, 0, 0, 2, '\x6469727479', NULL, 'vm:18150', NULL, NULL);
INSERT INTO requeue.keys VALUES (1, 2, 0, NULL, 1795428437497414, 1795428438215671, 0, 1, 0, 1, 1, NULL, NULL, NULL, NULL, NULL, NULL, 8, '\x7061726b6564', 'exit status: 3', NULL, NULL, NULL);
INSERT INTO requeue.keys VALUES (1, 0, 0, 3098524720054102, 3098524720054102, 3098524720054102, 3098524720054102, 1, 0, 1, 1, NULL, NULL, NULL, NULL, NULL, NULL, 8, '\x6261636b696e672d6f6666', 'exit status: 3', NULL, NULL, NULL);
INSERT INTO requeue.keys VALUES (1, 0, 1, 4949028441574185, 4949028441574185, 0, 0, 1, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 8, '\x77616974696e67', NULL, NULL, NULL, NULL);
INSERT INTO requeue.keys VALUES (1, 0, -1, 1795428441618657, 1795428441618657, 0, 0, 1, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 8, '\x6c6f77', NULL, NULL, NULL, NULL);
INSERT INTO requeue.keys VALUES (1, 0, 0, 1795428441618657, 1795428441618657, 0, 0, 2, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 1, '\x7265616479', NULL, NULL, NULL, NULL);
INSERT INTO requeue.keys VALUES (2, 0, 0, 1795428441721053, 1795428441721053, 0, 0, 1, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 8, '\x6f74686572', NULL, NULL, NULL, NULL);
INSERT INTO requeue.keys VALUES (1, 3, 0, NULL, 1795428413835610, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, '\x64616d61676564', 'priority is 9; the row was (1)', NULL, NULL, NULL);
INSERT INTO requeue.queues OVERRIDING SYSTEM VALUE VALUES (1, 'mail', true, true, 1795428448430260);
INSERT INTO requeue.queues OVERRIDING SYSTEM VALUE VALUES (2, 'tasks', false, false, 0);
INSERT INTO requeue.version VALUES (2);
SELECT pg_catalog.setval('requeue.epochs', 1795428439577253, true);
SELECT pg_catalog.setval('requeue.queues_id_seq', 2, true);
ALTER TABLE ONLY requeue.keys
    ADD CONSTRAINT keys_pkey PRIMARY KEY (queue, key);
ALTER TABLE ONLY requeue.queues
    ADD CONSTRAINT queues_name_key UNIQUE (name);
ALTER TABLE ONLY requeue.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (id);
ALTER TABLE requeue.keys
    ADD CONSTRAINT readable CHECK (((state = 3) OR (requeue.damage(state, priority, at, since, until, not_before, adds, reasons, failures, steps, epoch, lease_until, run_since, run_priority, run_adds, run_reasons, worker, bound, cancel_epoch) IS NULL))) NOT VALID;
ALTER TABLE ONLY requeue.renewals
    ADD CONSTRAINT renewals_pkey PRIMARY KEY (epoch);
CREATE INDEX keys_leases ON requeue.keys USING btree (queue, lease_until) WHERE (state = 1);
CREATE INDEX keys_parked ON requeue.keys USING btree (queue, key) WHERE (state = 2);
CREATE INDEX keys_ready ON requeue.keys USING btree (queue, priority, at) WHERE (state = 0);
REVOKE ALL ON FUNCTION requeue.add(queue text, key bytea, after interval, merge text, priority text, reasons integer, revive boolean, debounce interval, at_most interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.add(queue text, key text, after interval, merge text, priority text, reasons integer, revive boolean, debounce interval, at_most interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.add_all(in_queue integer, in_keys bytea[], in_afters bigint[], in_hows smallint[], in_priorities smallint[], in_reasons integer[], in_adds integer[], in_mosts bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.add_all_soon(in_queue integer, in_keys bytea[], in_afters bigint[], in_hows smallint[], in_priorities smallint[], in_reasons integer[], in_adds integer[], in_mosts bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.add_each(queue text, keys bytea[], afters bigint[], hows smallint[], priorities smallint[], reasons integer[], mosts bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.add_free(in_queue integer, in_keys bytea[], in_afters bigint[], in_hows smallint[], in_priorities smallint[], in_reasons integer[], in_adds integer[], in_mosts bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.add_many(queue text, keys bytea[], after interval, merge text, priority text, reasons integer, revive boolean, debounce interval, at_most interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.add_many(queue text, keys text[], after interval, merge text, priority text, reasons integer, revive boolean, debounce interval, at_most interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.answers() FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.asking(how smallint) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.cancel(in_queue integer, in_keys bytea[], in_state integer, OUT cancelled integer[], OUT took integer[], OUT locked integer[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.cancel_running(in_queue integer, in_key bytea) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.check_queue(in_queue integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.checked(key bytea) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.claim(in_queue integer, in_hold boolean, in_max integer, in_oldest integer, in_lease bigint, in_base bigint, in_cap bigint, in_share double precision, in_most integer, in_lows bigint[], in_newest boolean, in_worker text) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.damage(state smallint, priority smallint, at bigint, since bigint, until bigint, not_before bigint, adds integer, reasons integer, failures integer, steps integer, epoch bigint, lease_until bigint, run_since bigint, run_priority smallint, run_adds integer, run_reasons integer, worker text, bound bigint, cancel_epoch bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.damage_of(k requeue.keys) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.decides(epoch bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.delay(after interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.demanded(k requeue.keys, wanted bigint, t bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.drop_queue(name text, force boolean, OUT dropped boolean, OUT ready bigint, OUT waiting bigint, OUT processing bigint, OUT dirty bigint, OUT parked bigint, OUT damaged bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.ended(k requeue.keys, t bigint, hold boolean, how smallint, delay bigint, in_priority smallint, in_adds integer, in_reasons integer, in_error text, base bigint, cap bigint, share double precision, most integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.find(name text) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.finish(in_queue integer, in_hold boolean, ends requeue.ends) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.finish_free(in_queue integer, in_hold boolean, ends requeue.ends, OUT held integer[], OUT locked integer[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.finish_soon(in_queue integer, in_hold boolean, ends requeue.ends) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.forgotten(k requeue.keys) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.horizon(waited_until bigint, t bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.how_number(merge text, revive boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.is_asking(said smallint) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.is_idle(in_queue integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.is_readable(k requeue.keys) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.is_renewed(in_epoch bigint, t bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.keep(k requeue.keys) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.keep_queue(in_queue integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.later(at bigint, micros bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.lock(in_queue integer, in_keys bytea[], OUT numbers integer[], OUT ids tid[], OUT locked integer[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.longest_wait(after interval, debounce interval, at_most interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.most_decisions() FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.newest(first bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.noted(k requeue.keys, in_priority smallint, in_adds integer, in_reasons integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.now() FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.open(name text, hold boolean, revive boolean, OUT id integer, OUT holds boolean, OUT revives boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.part(ends requeue.ends, first integer, last integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.passed_over(in_queue integer, in_floors bigint[], in_lows bigint[], OUT passed bigint[], OUT next_lease bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.priority_number(priority text) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.raise_epochs() FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.renew(in_queue integer, in_keys bytea[], in_epochs bigint[], in_lease bigint, OUT renewed integer[], OUT busy integer[], OUT rest integer[], OUT cancelled integer[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.revive(in_queue integer, in_keys bytea[], OUT revived integer[], OUT locked integer[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.set_aside(in_queue integer, in_key bytea) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.wait(in_queue integer, in_time bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.wake(in_queue integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.wants_exactly(said smallint) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.wants_latest(said smallint) FROM PUBLIC;
REVOKE ALL ON FUNCTION requeue.wants_revival(said smallint) FROM PUBLIC;
