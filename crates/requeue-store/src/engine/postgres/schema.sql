-- Version 1. Times are microseconds since 1970, by the server's clock.
create schema requeue;

create table requeue.version (version integer not null);
insert into requeue.version values (1);

create table requeue.queues (
    id integer generated always as identity primary key,
    name text collate "C" not null unique,
    -- Whether nothing runs before a backoff has passed; if not, an add takes the place of a delayed one.
    hold boolean not null,
    -- Whether an add revives a parked key; if not, only an add that asks for it does.
    revive boolean not null default true,
    -- Until when somebody may be waiting: where nobody is, nobody is notified.
    waited_until bigint not null default 0
);

-- The epochs of deliveries: see `raise_epochs`.
create sequence requeue.epochs;

-- The value of a row that is not valid, if one is not. No verb writes such a row, and the table refuses it,
-- unless its constraint was dropped. A claim sets such rows aside. See `damage.rs`, which has the same
-- rules. (Times are from 1970 on, so that no difference of two overflows. No text is made in parts that are
-- not immutable: then each use has the whole expression in its place.)
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

-- A row for each key that has a state.
create table requeue.keys (
    queue integer not null,
    -- 0: ready or waiting; 1: with a worker; 2: parked; 3: set aside, as `error` says.
    state smallint not null,
    priority smallint not null,
    -- When the run that is pending is due.
    at bigint,
    since bigint not null,
    until bigint not null default 0,
    not_before bigint not null default 0,
    adds integer not null,
    reasons integer not null,
    failures integer not null default 0,
    steps integer not null default 0,
    -- Of one with a worker: its hand-out, and what that was asked with.
    epoch bigint,
    lease_until bigint,
    run_since bigint,
    run_adds integer,
    run_reasons integer,
    run_priority smallint,
    -- What the last add was answered, or how it asks: see `asking`.
    said smallint not null,
    key bytea not null,
    error text,
    -- Of one with a worker: the name of that.
    worker text,
    constraint readable check (state = 3 or requeue.damage(
        state, priority, at, since, until, not_before, adds, reasons, failures, steps, epoch, lease_until,
        run_since, run_priority, run_adds, run_reasons, worker
    ) is null),
    primary key (queue, key)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Leases that are renewed while somebody else has the key locked, such as with an add that has not
-- committed: until when, if that is later than what the key's row says.
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

-- (A planner takes half of all rows for readable by this. By `is null` it would be one in 200.)
create function requeue.is_readable(k requeue.keys) returns boolean language sql immutable
    return case when requeue.damage_of(k) is null then true else false end;
