-- The tables. Times are microseconds since 1970, measured by the server's clock.
create table requeue.version (version integer not null);

create table requeue.queues (
    id integer generated always as identity primary key,
    name text collate "C" not null unique,
    -- If true, no key runs before its backoff is over. If false, an add replaces a delayed run.
    hold boolean not null,
    -- If true, each add revives a parked key. If false, only an add that requests the revival revives the key.
    revive boolean not null default true,
    -- The time until which a process may be waiting. After that time, adds send no notification.
    waited_until bigint not null default 0 check (waited_until >= 0),
    -- True if the queue is paused, so that it delivers no key.
    paused boolean not null default false
);

-- The fencing tokens of deliveries: see `raise_epochs`.
create sequence requeue.epochs;

-- One row for each key that has a state. The constraints refuse each row that requeue cannot read, so that operations
-- need not check rows. (Times are from 1970 on, so that the difference between two times never overflows.)
create table requeue.keys (
    queue integer not null,
    -- The state: 0 for ready or waiting, 1 for in flight, 2 for parked.
    state smallint not null check (state between 0 and 2),
    priority smallint not null check (priority between -1 and 1),
    -- The due time of the pending run.
    at bigint check (at >= 0),
    since bigint not null check (since >= 0),
    until bigint not null default 0 check (until >= 0),
    not_before bigint not null default 0 check (not_before >= 0),
    adds integer not null check (adds >= 0),
    -- The 32 bits of the flags.
    flags integer not null,
    failures integer not null default 0 check (failures >= 0),
    steps integer not null default 0 check (steps >= 0),
    -- The delivery of a key in flight, and the parameters of its run.
    epoch bigint check (epoch > 0),
    lease_until bigint check (lease_until >= 0),
    run_since bigint check (run_since >= 0),
    run_adds integer check (run_adds >= 0),
    run_flags integer,
    run_priority smallint check (run_priority between -1 and 1),
    -- The answer to the last add, or the encoded request of that add: see `wants_latest`.
    said smallint not null,
    key bytea not null check (octet_length(key) <= 2048),
    error text,
    -- The name of the worker of a key in flight, without control characters.
    worker text check (octet_length(worker) <= 100 and worker !~ '[\u0001-\u001f\u007f-\u009f]'),
    -- The latest time to which further debounced adds postpone the run of a debounced key.
    bound bigint check (bound >= 0),
    -- The fencing token of the cancelled delivery of a key in flight. A later delivery has another token, so its run is
    -- not cancelled.
    cancel_epoch bigint check (cancel_epoch > 0),
    constraint pending check (case state when 0 then at is not null when 2 then at is null else true end),
    constraint in_flight check (
        case state
            when 1 then num_nulls(epoch, lease_until, run_since, run_priority, run_adds, run_flags) = 0
            else epoch is null
        end
    ),
    primary key (queue, key)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Leases that were renewed while another transaction had the key locked, for example by an uncommitted add.
-- `lease_until` applies if it is later than the value in the key's row.
create table requeue.renewals (
    epoch bigint primary key,
    lease_until bigint not null
);

create index keys_ready on requeue.keys (queue, priority, at) where state = 0;
create index keys_leases on requeue.keys (queue, lease_until) where state = 1;
create index keys_parked on requeue.keys (queue, key) where state = 2;

-- Completions, with the arguments of `ended` for each. If all runs have succeeded, only the first three arrays are set.
create type requeue.ends as (
    keys bytea[], epochs bigint[], hows smallint[], delays bigint[], priorities smallint[],
    adds integer[], flags integer[], errors text[], bases bigint[], caps bigint[],
    shares double precision[], mosts integer[]
);

