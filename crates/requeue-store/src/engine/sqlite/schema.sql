create table queues (
    -- An id is not reused after a drop of the queue, because a process may still have the queue open.
    id integer primary key autoincrement,
    name text not null unique,
    -- With 0, an add replaces a delayed run. With 1, no key runs before its backoff is over.
    readd_policy integer not null check (readd_policy in (0, 1)),
    -- The effect of an add on a parked key: 0 revives it, 1 keeps it parked.
    parked_add integer not null check (parked_add in (0, 1)),
    -- 1 if the queue is paused, so that it delivers no key.
    paused integer not null default 0 check (paused in (0, 1))
) strict;

-- The last fencing token. The next token is greater, and at least the time in microseconds since 1970, so that tokens
-- increase even after a backup was restored.
create table epochs (last integer not null) strict;
insert into epochs values (0);

-- The state of the clock, in one row: the last start of the machine, the time of this start, and
-- the latest time.
create table clock (
    id integer primary key,
    start text not null,
    began integer not null,
    latest integer not null
) strict;

-- One row for each key that has a state. Times are microseconds since 1970. The constraints refuse each row that
-- requeue cannot read, so that operations need not check rows.
create table keys (
    queue integer not null,
    key blob not null check (length(key) <= 2048),
    -- The state: 0 for ready or waiting, 1 for in flight, 2 for parked.
    state integer not null check (state between 0 and 2),
    -- The due time of the pending run.
    at integer check (at >= 0),
    priority integer not null check (priority between -1 and 1),
    adds integer not null check (adds between 0 and 4294967295),
    flags integer not null check (flags between 0 and 4294967295),
    failures integer not null check (failures between 0 and 4294967295),
    steps integer not null check (steps between 0 and 4294967295),
    until integer not null check (until >= 0),
    not_before integer not null check (not_before >= 0),
    since integer not null check (since >= 0),
    -- The latest time to which further debounced adds postpone the run of a debounced key.
    bound integer check (bound >= 0),
    error text,
    -- The delivery of a key in flight, and the parameters of its run.
    epoch integer check (epoch > 0),
    lease_until integer check (lease_until >= 0),
    run_since integer check (run_since >= 0),
    run_priority integer check (run_priority between -1 and 1),
    run_adds integer check (run_adds between 0 and 4294967295),
    run_flags integer check (run_flags between 0 and 4294967295),
    -- The name of the worker of a key in flight, without control characters.
    worker text check (
        length(cast(worker as blob)) <= 100
        and worker not glob '*[' || char(1, 45, 31, 127, 45, 159) || ']*'
        and instr(worker, char(0)) = 0
    ),
    -- The fencing token of the delivery whose run was cancelled. A later delivery has another token, so its run is not
    -- cancelled.
    cancel_epoch integer check (cancel_epoch > 0),
    constraint pending check (case state when 0 then at is not null when 2 then at is null else true end),
    constraint in_flight check (
        case state
            when 1 then epoch is not null and lease_until is not null and run_since is not null
                and run_priority is not null and run_adds is not null and run_flags is not null
            else epoch is null
        end
    ),
    primary key (queue, key)
) strict, without rowid;

create index keys_ready on keys (queue, priority, at) where state = 0;
create index keys_leases on keys (queue, lease_until) where state = 1;
create index keys_parked on keys (queue, key) where state = 2;
