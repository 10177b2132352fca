-- Version 1. Times are microseconds since 1970, measured by the server's clock.
create schema requeue;

create table requeue.version (version integer not null);
insert into requeue.version values (1);

create table requeue.queues (
    id integer generated always as identity primary key,
    name text collate "C" not null unique,
    -- True: nothing runs before a backoff is over. False: an add replaces a delayed run.
    hold boolean not null,
    -- True: an add revives a parked key. False: only an add that requests it does.
    revive boolean not null default true,
    -- The time until which a process may be waiting. Without a waiting process, adds send no notification.
    waited_until bigint not null default 0 check (waited_until >= 0)
);

-- The fencing tokens of deliveries: see `raise_epochs`.
create sequence requeue.epochs;

-- Names the first invalid value of a row, or returns null. No operation writes an invalid row, and the
-- table rejects it unless its constraint was dropped. A claim sets such rows aside. `damage.rs` has the
-- same rules. (Times are from 1970 on, so that the difference between two times never overflows. The text
-- is built only from immutable parts: otherwise each use would repeat the whole expression.)
create function requeue.damage(
    state smallint, priority smallint, at bigint, since bigint, until bigint, not_before bigint,
    adds integer, reasons integer, failures integer, steps integer, epoch bigint,
    lease_until bigint, run_since bigint, run_priority smallint, run_adds integer,
    run_reasons integer, worker text
) returns text language sql immutable
    return case
        when (state between 0 and 2) is not true then 'state is ' || coalesce(state::text, 'null')
        when (priority between -1 and 1) is not true then 'priority is ' || coalesce(priority::text, 'null')
        when (at >= 0 and state <> 2 or at is null and state <> 0) is not true then 'at is ' || coalesce(at::text, 'null')
        when (since >= 0) is not true then 'since is ' || coalesce(since::text, 'null')
        when (until >= 0) is not true then 'until is ' || coalesce(until::text, 'null')
        when (not_before >= 0) is not true then 'not_before is ' || coalesce(not_before::text, 'null')
        when (adds >= 0) is not true then 'adds is ' || coalesce(adds::text, 'null')
        when (reasons is not null) is not true then 'reasons is ' || coalesce(reasons::text, 'null')
        when (failures >= 0) is not true then 'failures is ' || coalesce(failures::text, 'null')
        when (steps >= 0) is not true then 'steps is ' || coalesce(steps::text, 'null')
        when state <> 1 then case when epoch is not null then 'epoch is ' || epoch::text end
        when (epoch > 0) is not true then 'epoch is ' || coalesce(epoch::text, 'null')
        when (lease_until >= 0) is not true then 'lease_until is ' || coalesce(lease_until::text, 'null')
        when (run_since >= 0) is not true then 'run_since is ' || coalesce(run_since::text, 'null')
        when (run_priority between -1 and 1) is not true then 'run_priority is ' || coalesce(run_priority::text, 'null')
        when (run_adds >= 0) is not true then 'run_adds is ' || coalesce(run_adds::text, 'null')
        when (run_reasons is not null) is not true then 'run_reasons is ' || coalesce(run_reasons::text, 'null')
        when octet_length(worker) > 100 or worker ~ '[\u0001-\u001f\u007f-\u009f]' then 'worker is not valid'
    end;

-- One row for each key that has a state.
create table requeue.keys (
    queue integer not null,
    -- 0: ready or waiting; 1: in flight; 2: parked; 3: set aside, with the damage in `error`.
    state smallint not null,
    priority smallint not null,
    -- The due time of the pending run.
    at bigint,
    since bigint not null,
    until bigint not null default 0,
    not_before bigint not null default 0,
    adds integer not null,
    reasons integer not null,
    failures integer not null default 0,
    steps integer not null default 0,
    -- For a key in flight: its delivery, and the parameters of its run.
    epoch bigint,
    lease_until bigint,
    run_since bigint,
    run_adds integer,
    run_reasons integer,
    run_priority smallint,
    -- The answer to the last add, or the encoded request of that add: see `asking`.
    said smallint not null,
    key bytea not null,
    error text,
    -- For a key in flight: the name of its worker.
    worker text,
    constraint readable check (state = 3 or requeue.damage(
        state, priority, at, since, until, not_before, adds, reasons, failures, steps, epoch, lease_until,
        run_since, run_priority, run_adds, run_reasons, worker
    ) is null),
    primary key (queue, key)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Leases that were renewed while another transaction had the key locked, for example an add that has not
-- committed. `lease_until` applies if it is later than the value in the key's row.
create table requeue.renewals (
    epoch bigint primary key,
    lease_until bigint not null
);

create index keys_ready on requeue.keys (queue, priority, at) where state = 0;
create index keys_leases on requeue.keys (queue, lease_until) where state = 1;
create index keys_parked on requeue.keys (queue, key) where state = 2;

create function requeue.damage_of(k requeue.keys) returns text language sql immutable
    return requeue.damage(
        k.state, k.priority, k.at, k.since, k.until, k.not_before, k.adds, k.reasons,
        k.failures, k.steps, k.epoch, k.lease_until, k.run_since, k.run_priority, k.run_adds,
        k.run_reasons, k.worker
    );

-- (The planner assumes that this accepts half of all rows. With `is null`, it would assume one in 200.)
create function requeue.is_readable(k requeue.keys) returns boolean language sql immutable
    return case when requeue.damage_of(k) is null then true else false end;
