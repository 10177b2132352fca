create table queues (
    -- A dropped queue's id is not used for a new queue, because a process may still have the dropped queue open.
    id integer primary key autoincrement,
    name text not null unique,
    -- 0: an add replaces the due time of a waiting key. 1: no key runs before its backoff is over.
    readd_policy integer not null check (readd_policy in (0, 1)),
    -- 0: an add revives a parked key. 1: an add leaves it parked.
    parked_add integer not null check (parked_add in (0, 1)),
    -- 1 if the queue is paused. No key is then delivered.
    paused integer not null default 0 check (paused in (0, 1))
) strict;

-- The last fencing token. The next token is greater than this token, and not less than the time in microseconds since
-- 1970. Therefore, tokens grow even after a backup was restored.
create table epochs (last integer not null) strict;
insert into epochs values (0);

-- The state of the file's clock, in one row. It has the identifier of the machine's last start, the file's time at this
-- start, and the latest time that was stored.
create table clock (
    id integer primary key,
    start text not null,
    began integer not null,
    latest integer not null
) strict;

-- One row for each key that has a state. Times are in microseconds since 1970. The constraints refuse each row that
-- requeue cannot read. Therefore, the operations need not check rows.
create table keys (
    queue integer not null,
    key blob not null check (length(key) <= 2048),
    -- The state: 0 if the key is ready or waiting, 1 if it is in flight, and 2 if it is parked.
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
    -- The latest time to which further debounced adds can postpone the pending run.
    bound integer check (bound >= 0),
    error text,
    -- The delivery of a key in flight, and the parameters of its run.
    epoch integer check (epoch > 0),
    lease_until integer check (lease_until >= 0),
    run_since integer check (run_since >= 0),
    run_priority integer check (run_priority between -1 and 1),
    run_adds integer check (run_adds between 0 and 4294967295),
    run_flags integer check (run_flags between 0 and 4294967295),
    -- The name of the worker that has the key in flight. It has no control characters.
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
