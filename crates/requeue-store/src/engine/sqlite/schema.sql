create table queues (
    -- Never reused after a drop of the queue: a process may still have the queue open.
    id integer primary key autoincrement,
    name text not null unique,
    -- 0: an add replaces a delayed run; 1: in addition, nothing runs before a backoff is over.
    re_add integer not null check (re_add in (0, 1)),
    -- The effect of an add on a parked key: 0 revives it, 1 keeps it parked.
    parked_add integer not null check (parked_add in (0, 1)),
    -- 1: the queue delivers no key.
    paused integer not null default 0 check (paused in (0, 1))
) strict;

-- The last fencing token. The next one is greater, and at least the time in microseconds since 1970, so
-- that tokens also increase after a backup was restored.
create table epochs (last integer not null) strict;
insert into epochs values (0);

-- The state of the time, in one row: the last start of the machine, its time, and the latest time.
create table clock (
    id integer primary key,
    start text not null,
    began integer not null,
    latest integer not null
) strict;

-- One row for each key that has a state. Times are microseconds since 1970.
create table keys (
    queue integer not null,
    key blob not null,
    -- 0: ready or waiting; 1: in flight; 2: parked; 3: set aside, with the damage in `error`.
    state integer not null,
    -- The due time of the pending run.
    at integer,
    -- For a key in flight: its delivery, and the parameters of its run.
    epoch integer,
    lease_until integer,
    run_since integer,
    run_priority integer,
    run_adds integer,
    run_reasons integer,
    priority integer not null,
    adds integer not null,
    reasons integer not null,
    failures integer not null,
    steps integer not null,
    until integer not null,
    not_before integer not null,
    since integer not null,
    error text,
    -- For a key in flight: the name of its worker.
    worker text,
    -- For a key that waits for debounced adds: the latest time to which further ones postpone its run.
    bound integer,
    -- For a key in flight: the fencing token of the delivery whose run was cancelled. A later delivery has
    -- another token, and is not cancelled.
    cancel_epoch integer,
    -- Other programs may write rows without this check: see `damage.rs`, which has the same rules.
    constraint readable check (state = 3 or {readable}),
    primary key (queue, key)
) strict, without rowid;

create index keys_ready on keys (queue, priority, at) where state = 0;
create index keys_leases on keys (queue, lease_until) where state = 1;
create index keys_parked on keys (queue, key) where state = 2;
