-- The tables. Times are microseconds since 1970, measured by the server's clock.
create table requeue.version (version integer not null);

-- A rate that requeue can read: see `Rate::check`.
create function requeue.is_rate(rate bigint[]) returns boolean language sql immutable
    return rate is null or cardinality(rate) = 3 and rate[1] between 1 and 4294967295 and rate[2] > 0
        and rate[3] between 1 and 4294967295 and rate[2]::numeric * rate[3] <= 1125899906842624;

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
    paused boolean not null default false,
    -- Null: the queue has no groups. Empty: each add says the group. Otherwise the regular expression that extracts the
    -- group from the key.
    group_by text,
    -- The limit of keys in flight of each group that has no other one.
    group_limit integer check (group_limit > 0),
    -- The rate of all starts: their number, its time in microseconds, and the burst.
    rate bigint[] check (requeue.is_rate(rate)),
    -- True: a group has or had a rate.
    has_group_rates boolean not null default false
);

-- One row for each group that has settings.
create table requeue.groups (
    queue integer not null,
    name text collate "C" not null,
    -- The limit of keys in flight.
    most integer check (most > 0),
    -- The number of keys in one turn.
    weight integer not null default 1 check (weight > 0),
    -- True: the group delivers no key.
    paused boolean not null default false,
    -- The rate of its starts, as for queues.
    rate bigint[] check (requeue.is_rate(rate)),
    primary key (queue, name)
);

-- The time from which each rate permits the next start: see `rates.sql`.
create table requeue.rates (
    queue integer not null,
    name text collate "C" not null,
    next_at bigint not null check (next_at >= 0),
    primary key (queue, name)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create index rates_next on requeue.rates (queue, next_at);

-- The fencing tokens of deliveries: see `raise_epochs`.
create sequence requeue.epochs;

-- One row for each key that has a state. The constraints refuse each row that requeue cannot read, so that no
-- operation checks rows again. (Times are from 1970 on, so that the difference between two times never
-- overflows.)
create table requeue.keys (
    queue integer not null,
    -- 0: ready or waiting; 1: in flight; 2: parked.
    state smallint not null check (state between 0 and 2),
    priority smallint not null check (priority between -1 and 1),
    -- The due time of the pending run.
    at bigint check (at >= 0),
    since bigint not null check (since >= 0),
    until bigint not null default 0 check (until >= 0),
    not_before bigint not null default 0 check (not_before >= 0),
    adds integer not null check (adds >= 0),
    -- 32 bits.
    reasons integer not null,
    failures integer not null default 0 check (failures >= 0),
    steps integer not null default 0 check (steps >= 0),
    -- For a key in flight: its delivery, and the parameters of its run.
    epoch bigint check (epoch > 0),
    lease_until bigint check (lease_until >= 0),
    run_since bigint check (run_since >= 0),
    run_adds integer check (run_adds >= 0),
    run_reasons integer,
    run_priority smallint check (run_priority between -1 and 1),
    -- The answer to the last add, or the encoded request of that add: see `wants_latest`.
    said smallint not null,
    key bytea not null check (octet_length(key) <= 2048),
    error text,
    -- For a key in flight: the name of its worker, without control characters.
    worker text check (octet_length(worker) <= 100 and worker !~ '[\u0001-\u001f\u007f-\u009f]'),
    -- For a key that waits for debounced adds: the latest time to which further ones postpone its run.
    bound bigint check (bound >= 0),
    -- For a key in flight: the fencing token of the delivery whose run was cancelled. A later delivery has
    -- another token, and is not cancelled.
    cancel_epoch bigint check (cancel_epoch > 0),
    -- The group, without control characters. Null: the queue has no groups. Empty: the key is in none.
    grp text collate "C" check (octet_length(grp) <= 100 and grp !~ '[\u0001-\u001f\u007f-\u009f]'),
    -- For a pending key of a queue with groups: true if it was due when the row was written. See `turns.sql`.
    is_due boolean not null default false,
    constraint pending check (case state when 0 then at is not null when 2 then at is null else true end),
    constraint in_flight check (
        case state
            when 1 then num_nulls(epoch, lease_until, run_since, run_priority, run_adds, run_reasons) = 0
            else epoch is null
        end
    ),
    primary key (queue, key)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Leases that were renewed while another transaction had the key locked, for example an add that has not
-- committed. `lease_until` applies if it is later than the value in the key's row.
create table requeue.renewals (
    epoch bigint primary key,
    lease_until bigint not null
);

create index keys_ready on requeue.keys (queue, priority, at) where state = 0 and grp is null;
create index keys_leases on requeue.keys (queue, lease_until) where state = 1;
create index keys_parked on requeue.keys (queue, key) where state = 2;
-- For queues with groups: see `turns.sql`.
create index keys_turns on requeue.keys (queue, priority, grp, at) where state = 0 and is_due and grp is not null;
create index keys_delayed on requeue.keys (queue, at) where state = 0 and not is_due and grp is not null;
create index keys_of_group on requeue.keys (queue, grp) where state = 1 and grp is not null;

-- Completions, with the arguments of `ended` for each. If all have succeeded, only the first three arrays are
-- set.
create type requeue.ends as (
    keys bytea[], epochs bigint[], hows smallint[], delays bigint[], priorities smallint[],
    adds integer[], reasons integer[], errors text[], bases bigint[], caps bigint[],
    shares double precision[], mosts integer[]
);


-- A group that a claim visits: its priority, the number of keys that it has got in its turn, whether its turn comes next
-- (or after those of all other groups), and its settings. `most` is the limit of keys in flight, or null.
create type requeue.turn as (
    priority integer, name text collate "C", used bigint, is_next boolean, weight integer, most integer
);
