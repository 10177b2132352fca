-- The tables. Times are in microseconds since 1970, by the server's clock.
create table requeue.version (version integer not null);

create table requeue.queues (
    id integer generated always as identity primary key,
    name text collate "C" not null unique,
    -- True: no key runs before its backoff is over. False: an add replaces the due time of a waiting key.
    hold boolean not null,
    -- True: each add revives a parked key. False: only an add that requests a revival revives it.
    revive boolean not null default true,
    -- The time until which a process may wait for a notification. After this time, adds send no notification.
    waited_until bigint not null default 0 check (waited_until >= 0),
    -- True if the queue is paused. No key is then delivered.
    paused boolean not null default false
);

-- The fencing tokens of deliveries: see `raise_epochs`.
create sequence requeue.epochs;

-- One row for each key that has a state. The constraints refuse each row that requeue cannot read. Therefore, the
-- operations need not check rows. (Times are not before 1970, so the difference between two times never overflows.)
create table requeue.keys (
    queue integer not null,
    -- The state: 0 if the key is ready or waiting, 1 if it is in flight, and 2 if it is parked.
    state smallint not null check (state between 0 and 2),
    priority smallint not null check (priority between -1 and 1),
    -- The due time of the pending run.
    at bigint check (at >= 0),
    since bigint not null check (since >= 0),
    until bigint not null default 0 check (until >= 0),
    not_before bigint not null default 0 check (not_before >= 0),
    adds integer not null check (adds >= 0),
    -- The 32 bits of the flags, as a signed number.
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
    -- The answer to the last add. While this add is in progress, its encoded request: see `wants_latest`.
    said smallint not null,
    key bytea not null check (octet_length(key) <= 2048),
    error text,
    -- The name of the worker that has the key in flight. It has no control characters.
    worker text check (octet_length(worker) <= 100 and worker !~ '[\u0001-\u001f\u007f-\u009f]'),
    -- The latest time to which further debounced adds can postpone the pending run.
    bound bigint check (bound >= 0),
    -- The fencing token of the delivery whose run was cancelled. A later delivery has another token, so its run is not
    -- cancelled.
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

-- Renewals of leases whose keys another transaction had locked, for example an uncommitted add. The later one of this
-- `lease_until` and the value in the key's row applies.
create table requeue.renewals (
    epoch bigint primary key,
    lease_until bigint not null
);

create index keys_ready on requeue.keys (queue, priority, at) where state = 0;
create index keys_leases on requeue.keys (queue, lease_until) where state = 1;
create index keys_parked on requeue.keys (queue, key) where state = 2;

-- A batch of completions, with the arguments of `ended` for each. If all runs have succeeded, only the first three
-- arrays are set.
create type requeue.ends as (
    keys bytea[], epochs bigint[], hows smallint[], delays bigint[], priorities smallint[],
    adds integer[], flags integer[], errors text[], bases bigint[], caps bigint[],
    shares double precision[], mosts integer[]
);

