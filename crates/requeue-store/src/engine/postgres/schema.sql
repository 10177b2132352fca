-- The tables. Times are microseconds since 1970, measured by the server's clock.
create table requeue.version (version integer not null);

create table requeue.queues (
    id integer generated always as identity primary key,
    name text collate "C" not null unique,
    -- True: nothing runs before a backoff is over. False: an add replaces a delayed run.
    hold boolean not null,
    -- True: an add revives a parked key. False: only an add that requests it does.
    revive boolean not null default true,
    -- The time until which a process may be waiting. Without a waiting process, adds send no notification.
    waited_until bigint not null default 0 check (waited_until >= 0),
    -- True: the queue delivers no key.
    paused boolean not null default false
);

-- The fencing tokens of deliveries: see `raise_epochs`.
create sequence requeue.epochs;

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
    -- For a key that waits for debounced adds: the latest time to which further ones postpone its run.
    bound bigint,
    -- For a key in flight: the fencing token of the delivery whose run was cancelled. A later delivery has
    -- another token, and is not cancelled.
    cancel_epoch bigint,
    constraint readable check (state = 3 or octet_length(key) <= 2048 and requeue.damage(
        state, priority, at, since, until, not_before, adds, reasons, failures, steps, epoch, lease_until,
        run_since, run_priority, run_adds, run_reasons, worker, bound, cancel_epoch
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

-- Completions, with the arguments of `ended` for each. If all have succeeded, only the first three arrays are
-- set.
create type requeue.ends as (
    keys bytea[], epochs bigint[], hows smallint[], delays bigint[], priorities smallint[],
    adds integer[], reasons integer[], errors text[], bases bigint[], caps bigint[],
    shares double precision[], mosts integer[]
);

