-- Claims and completions for programs in other languages. Each function checks its arguments, and then calls the
-- function that the Rust library calls.
--
-- A session has the role of a process of the Rust library: between two claims of a queue, it remembers the turns of the
-- groups, and some times. A setting of the session has these values as JSON. If a transaction is rolled back, the
-- server also restores this setting.

-- Returns the values that this session remembers about a queue.
create or replace function requeue.recall(in_queue integer) returns jsonb language sql stable
    return coalesce(nullif(current_setting('requeue.queue_' || in_queue, true), '')::jsonb, '{}');

create or replace function requeue.remember(in_queue integer, changes jsonb) returns void
language plpgsql as $$
begin
    perform set_config('requeue.queue_' || in_queue, (requeue.recall(in_queue) || changes)::text, false);
end $$;

-- Returns the random share of a backoff. Tests replace this function.
create or replace function requeue.jitter() returns double precision language sql volatile return random();

-- Raises an error if the transaction does not see the later commits of other transactions.
create or replace function requeue.check_isolation(function text) returns void
language plpgsql as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'requeue.% needs the isolation level read committed', function
            using errcode = 'feature_not_supported', hint = 'begin isolation level read committed';
    end if;
end $$;

-- Returns a duration in microseconds. Raises an error if it is shorter than `shortest`.
create or replace function requeue.checked_duration(name text, value interval, shortest bigint) returns bigint
language plpgsql as $$
begin
    if value is null or value < shortest * interval '1 microsecond' then
        raise exception 'invalid % %: use at least % ms', name, quote_nullable(value::text), shortest / 1000
            using errcode = 'invalid_parameter_value';
    end if;
    return requeue.delay(value);
end $$;

create or replace function requeue.check_failures(max_failures integer) returns void
language plpgsql as $$
begin
    if max_failures < 1 then
        raise exception 'invalid max_failures %: use at least 1, or null for no limit', max_failures
            using errcode = 'invalid_parameter_value';
    end if;
end $$;

-- Adds counts to the activity of the current minute. Only this session writes the row, so no transaction waits for
-- another one. The caller holds the lock of a key, or the lock of `keep_queue`, so the queue cannot be dropped.
create or replace function requeue.count_work(in_queue integer, in_worker text, in_counts bigint[]) returns void
language plpgsql as $$
declare
    t constant bigint := requeue.now();
begin
    insert into requeue.activity as a values (
        in_queue, t / 60000000, 'sql ' || pg_backend_pid() || ' ' || in_worker, in_worker, t, in_counts[1],
        in_counts[2], in_counts[3], in_counts[4], in_counts[5], in_counts[6], '{no_times}'
    )
    on conflict (queue, minute, instance) do update set
        (at, adds, coalesced, starts, successes, failures, given_up) = (
            greatest(excluded.at, a.at + 1), a.adds + excluded.adds, a.coalesced + excluded.coalesced,
            a.starts + excluded.starts, a.successes + excluded.successes, a.failures + excluded.failures,
            a.given_up + excluded.given_up
        );
end $$;

-- Claims keys as `claim` does, or as `claim_turns` does in a queue with groups. For each priority, the session
-- remembers the last group that has received its turn, and the groups whose turns were interrupted. A new session
-- begins with a random group. Therefore, sessions that claim only once are also fair.
create or replace function requeue.claim_for_session(
    place requeue.queues, in_max integer, in_lease bigint, in_base bigint, in_cap bigint, in_most integer,
    in_worker text,
    out keys bytea[], out epochs bigint[], out priorities smallint[], out adds integer[], out flags integer[],
    out failures integer[], out queued bigint[], out groups text[], out parked bytea[], out next_due bigint
)
language plpgsql {planned} as $$
#variable_conflict use_column
declare
    lowest constant bigint[] := array_fill('-9223372036854775808'::bigint, array[4]);
    -- On average, one of {oldest_every} keys is the oldest ready key: see `OpenOptions::oldest_every`.
    oldest constant integer := floor(in_max / {oldest_every}.0 + 1 - requeue.jitter());
    known constant jsonb := requeue.recall(place.id);
    bands constant integer[] := coalesce((known ->> 'bands')::integer[], '{}');
    ring constant text[] := coalesce((known ->> 'ring')::text[], '{}');
    used constant integer[] := coalesce((known ->> 'used')::integer[], '{}');
    cursors text[] := (known ->> 'cursors')::text[];
    more integer := {looked_up};
    c record;
begin
    if place.group_by is null then
        select d.keys, d.epochs, d.priorities, d.adds, d.flags, d.failures, d.queued, d.parked, d.next_due
        into keys, epochs, priorities, adds, flags, failures, queued, parked, next_due
        from requeue.claim(place.id, place.hold, in_max, oldest, in_lease, in_base, in_cap, requeue.jitter(),
            in_most, lowest, false, in_worker, true) d;
        return;
    end if;
    cursors := coalesce(cursors, array(
        select (
            select g from unnest(requeue.next_groups(place.id, band - 2, null, {looked_up_if_empty})) g
            order by random() limit 1
        ) from generate_series(1, 3) band
    ));
    parked := '{}';
    loop
        select * into c from requeue.claim_turns(place.id, place.hold, in_max, oldest, in_lease, in_base, in_cap,
            requeue.jitter(), in_most, lowest, false, in_worker, bands, ring, used, cursors,
            array_fill(more, array[3]), true);
        parked := parked || c.parked;
        -- (If the claim has visited no group, the last value is null.)
        exit when cardinality(c.keys) > 0 or (true = all (c.is_complete)) is not false;
        more := least(more::bigint * 64, 2147483647);
    end loop;
    select c.keys, c.epochs, c.priorities, c.adds, c.flags, c.failures, c.queued, c.groups, c.next_due
    into keys, epochs, priorities, adds, flags, failures, queued, groups, next_due;
    if c.is_complete is null then
        return;
    end if;
    if (true = all (c.is_complete)) is not true then
        -- The claim has not looked up all groups, so the other groups may have ready keys.
        next_due := 0;
    end if;
    cursors := array(
        select coalesce((
            -- The claim has first visited the ring, then the groups after the cursor, and then the groups up to the
            -- cursor.
            select d.name from unnest(groups, priorities) as d (name, priority)
            where d.priority = b.band - 2 and not exists (
                select from unnest(bands, ring) as r (band, name) where r.band = b.band and r.name = d.name
            )
            order by coalesce(d.name collate "C" <= cursors[b.band], false) desc, d.name collate "C" desc limit 1
        ), cursors[b.band]) from generate_series(1, 3) as b (band)
    );
    perform requeue.remember(place.id, (
        select jsonb_build_object('cursors', cursors::text, 'bands', coalesce(array_agg(r.band), '{}')::text,
            'ring', coalesce(array_agg(r.name), '{}')::text, 'used', coalesce(array_agg(r.used), '{}')::text)
        from unnest(c.bands, c.ring, c.used, c.is_next) as r (band, name, used, is_next) where r.is_next
    ));
end $$;

-- Claims up to `keys` keys for a worker. `token` is the fencing token. `attempt` is 1 for a key that has not failed.
-- The backoff and `max_failures` apply to keys whose leases have expired.
create or replace function requeue.claim(
    queue text, worker text, keys integer default 1, lease interval default '{lease}',
    backoff interval default '{backoff}', max_backoff interval default '{max_backoff}',
    max_failures integer default null
) returns table (
    key bytea, token bigint, attempt integer, adds integer, flags integer, priority text, "group" text,
    queued interval
)
language plpgsql {definer} as $$
#variable_conflict use_column
declare
    place constant requeue.queues := requeue.known_queue(queue);
    t constant bigint := requeue.now();
    -- True if the function must record that the worker is alive.
    signs constant boolean := coalesce((requeue.recall(place.id) ->> 'sign')::bigint + {sign} <= t, true);
    c record;
    found_keys integer;
    lost_keys integer;
begin
    perform requeue.check_isolation('claim');
    perform requeue.check_failures(max_failures);
    if keys is null or keys not between 1 and {max_batch} then
        raise exception 'invalid number of keys %: use 1 to {max_batch}', coalesce(keys::text, 'NULL')
            using errcode = 'invalid_parameter_value';
    elsif worker is null or worker = '' or octet_length(worker) > 100
        or worker ~ '[\u0001-\u001f\u007f-\u009f]'
    then
        raise exception 'invalid worker name %: use 1 to 100 bytes without control characters',
            coalesce(to_json(left(worker, 100))::text, 'NULL')
            using errcode = 'invalid_parameter_value';
    end if;
    -- The commit must wait for the disk. Otherwise, after a crash of the server, another worker could receive keys that
    -- this worker holds.
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    if signs then
        -- This lock comes before the locks of keys, as in an add.
        perform requeue.keep_queue(place.id);
    end if;
    c := requeue.claim_for_session(place, keys, requeue.checked_duration('lease', lease, 1000),
        requeue.checked_duration('backoff', backoff, 0), requeue.checked_duration('max_backoff', max_backoff, 0),
        max_failures, worker);
    found_keys := cardinality(c.keys);
    lost_keys := cardinality(c.parked);
    if signs or found_keys > 0 or lost_keys > 0 then
        perform requeue.count_work(place.id, worker, array[0, 0, found_keys, 0, 0, lost_keys]);
    end if;
    if signs then
        perform requeue.trim_activity(place.id, t);
        perform requeue.remember(place.id, jsonb_build_object('sign', t));
    end if;
    -- If the claim was full, more keys may be ready.
    perform requeue.remember(place.id, jsonb_build_object('next', case
        when found_keys = keys then 0 else requeue.later(requeue.now(), c.next_due)
    end));
    return query
    select k.key, k.epoch, k.failures + 1, k.adds, k.flags, (array['low', 'normal', 'high'])[k.priority + 2],
        k.grp, k.queued * interval '1 microsecond'
    from unnest(c.keys, c.epochs, c.failures, c.adds, c.flags, c.priorities, c.groups, c.queued)
        as k (key, epoch, failures, adds, flags, priority, grp, queued);
end $$;

-- Makes this session listen to notifications of the queue. Returns the time for which the session may wait for a
-- notification before its next claim. This time is at most `poll`. It is 0 if the session must claim first, because
-- earlier adds have not notified it.
create or replace function requeue.listen(queue text, poll interval default '{poll}') returns interval
language plpgsql {definer} as $$
declare
    place constant requeue.queues := requeue.known_queue(queue);
    longest constant bigint := requeue.checked_duration('poll', poll, 1000);
    t constant bigint := requeue.now();
    known constant jsonb := requeue.recall(place.id);
    next_lease bigint;
begin
    perform requeue.check_isolation('listen');
    execute 'listen requeue_' || place.id;
    if coalesce((known ->> 'said')::bigint < requeue.later(t, longest), true) then
        perform requeue.wait(place.id, longest + {said});
        perform requeue.remember(place.id, jsonb_build_object('said', requeue.later(t, longest + {said})));
        return '0';
    end if;
    next_lease := (
        select p.next_lease from requeue.passed_over(
            place.id, array_fill('-9223372036854775808'::bigint, array[4]),
            array_fill('-9223372036854775808'::bigint, array[4])
        ) p
    );
    -- The remembered time is used once. Otherwise, a session that never claims would call this function in a loop.
    perform requeue.remember(place.id, '{"next": null}');
    return greatest(least(longest, (known ->> 'next')::bigint - t, next_lease), 0) * interval '1 microsecond';
end $$;

-- Renews the lease of a key. Returns `renewed`, or `cancelled` if the lease was renewed but the worker should stop the
-- run. Returns `busy` if another transaction is deciding on the lease, and `lost` if the lease no longer exists.
create or replace function requeue.renew_lease(
    queue text, key bytea, token bigint, lease interval default '{lease}'
) returns text
language plpgsql {definer} as $$
declare
    place constant requeue.queues := requeue.known_queue(queue);
    r record;
begin
    perform requeue.check_isolation('renew_lease');
    perform requeue.check_delivery(key, token);
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    r := requeue.renew(place.id, array[key], array[token], requeue.checked_duration('lease', lease, 1000));
    return case
        when r.busy <> '{}' then 'busy'
        when r.cancelled <> '{}' then 'cancelled'
        when r.renewed <> '{}' then 'renewed'
        else 'lost'
    end;
end $$;

create or replace function requeue.check_delivery(key bytea, token bigint) returns void
language plpgsql as $$
begin
    perform requeue.checked(key);
    if token is null then
        raise exception 'the token is null; pass the token that requeue.claim has returned'
            using errcode = 'null_value_not_allowed';
    end if;
end $$;

-- The next two functions return the first and the last 4 KiB of a text, without incomplete characters.
create or replace function requeue.first_part(whole text) returns text
language plpgsql immutable as $$
declare
    bytes constant bytea := convert_to(whole, 'UTF8');
    until_byte integer := 4096;
begin
    if octet_length(bytes) <= until_byte then
        return whole;
    end if;
    while get_byte(bytes, until_byte) & 192 = 128 loop
        until_byte := until_byte - 1;
    end loop;
    return convert_from(substring(bytes for until_byte), 'UTF8');
end $$;

create or replace function requeue.last_part(whole text) returns text
language plpgsql immutable as $$
declare
    bytes constant bytea := convert_to(whole, 'UTF8');
    from_byte integer := octet_length(bytes) - 4096;
begin
    if from_byte <= 0 then
        return whole;
    end if;
    while get_byte(bytes, from_byte) & 192 = 128 loop
        from_byte := from_byte + 1;
    end loop;
    return convert_from(substring(bytes from from_byte + 1), 'UTF8');
end $$;

-- Completes a delivery in the transaction of the caller. `ended` describes `in_how`. Returns false if the lease is
-- lost.
create or replace function requeue.end_delivery(
    queue text, key bytea, token bigint, in_how integer, in_delay bigint default null, in_error text default null,
    in_base bigint default null, in_cap bigint default null, in_most integer default null,
    in_status integer default null, in_output text default null
) returns boolean
-- (`finish` changes this setting. With this clause, the change does not apply to other changes of the caller.)
language plpgsql {definer} set synchronous_commit = off as $$
declare
    place constant requeue.queues := requeue.known_queue(queue);
    fails constant boolean := in_how between 2 and 4;
    k requeue.keys;
    held integer[];
begin
    perform requeue.check_delivery(key, token);
    select * into k from requeue.keys x
    where x.queue = place.id and x.key = end_delivery.key and x.epoch = token;
    if not found then
        return false;
    end if;
    held := requeue.finish(place.id, place.hold, row(
        array[key], array[token], array[in_how::smallint], array[in_delay], array[k.run_priority],
        array[k.run_adds], array[k.run_flags], array[requeue.first_part(in_error)], array[in_base],
        array[in_cap], array[requeue.jitter()], array[in_most], array[null::bigint], array[in_status],
        array[requeue.last_part(in_output)]
    )::requeue.ends, true);
    if held = '{}' then
        return false;
    end if;
    -- This rule is the same as that of `count_completion` in `engine/counters.rs`.
    perform requeue.count_work(place.id, coalesce(k.worker, ''), array[
        (in_how = 1)::integer, 0, 0, (in_how < 2)::integer, fails::integer,
        coalesce(in_how = 4 or fails and k.failures + 1 >= in_most, false)::integer
    ]);
    return true;
end $$;

-- Completes a run that has succeeded. If `after` is given, the key is added again after this time.
create or replace function requeue.complete(
    queue text, key bytea, token bigint, after interval default null
) returns boolean
language sql {definer}
    return requeue.end_delivery(queue, key, token, (after is not null)::integer, requeue.delay(after));

-- Completes a run that has failed. The key runs again after its backoff, or after `after` if it is given. The key is
-- parked after `max_failures` consecutive failures, or immediately if `park` is true.
create or replace function requeue.fail(
    queue text, key bytea, token bigint, error text, after interval default null, park boolean default false,
    backoff interval default '{backoff}', max_backoff interval default '{max_backoff}',
    max_failures integer default null, exit_status integer default null, output text default null
) returns boolean
language plpgsql {definer} as $$
begin
    perform requeue.check_failures(max_failures);
    if park and after is not null then
        raise exception 'a failure has either after or park: omit one of them'
            using errcode = 'invalid_parameter_value';
    end if;
    return requeue.end_delivery(queue, key, token,
        case when park then 4 when after is not null then 3 else 2 end, requeue.delay(after), error,
        requeue.checked_duration('backoff', backoff, 0), requeue.checked_duration('max_backoff', max_backoff, 0),
        max_failures, exit_status, output);
end $$;

-- Undoes a delivery, and counts no failure. The key is ready again, after all other ready keys.
create or replace function requeue.release(queue text, key bytea, token bigint) returns boolean
language sql {definer}
    return requeue.end_delivery(queue, key, token, 5);

-- Completes a run that was stopped because it was cancelled.
create or replace function requeue.cancelled(queue text, key bytea, token bigint) returns boolean
language sql {definer}
    return requeue.end_delivery(queue, key, token, 7);

-- A role has privileges on these functions only through grants.
revoke all on all functions in schema requeue from public;
