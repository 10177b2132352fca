-- Version 1.
create table queues (
    -- Never used again after the queue was dropped: a process may still have it open.
    id integer primary key autoincrement,
    name text not null unique,
    -- 0: an add takes the place of a delayed one; 1: and nothing runs before a backoff has passed.
    re_add integer not null check (re_add in (0, 1)),
    -- What an add does to a parked key: 0 revives it, 1 keeps it parked.
    parked_add integer not null check (parked_add in (0, 1))
) strict;

-- The last epoch. The next one is greater, and at least the time in microseconds since 1970, so that
-- epochs also rise after a backup was restored.
create table epochs (last integer not null) strict;
insert into epochs values (0);

-- One row, of what is known of the time: by which start of the machine, what time it was at that, and
-- how late it has been.
create table clock (
    id integer primary key,
    start text not null,
    began integer not null,
    latest integer not null
) strict;

-- A row for each key that has a state. Times are microseconds since 1970.
create table keys (
    queue integer not null,
    key blob not null,
    -- 0: ready or waiting; 1: with a worker; 2: parked; 3: set aside, as `error` says.
    state integer not null,
    -- When the run that is pending is due.
    at integer,
    -- Of one with a worker: its hand-out, and what that was asked with.
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
    -- Of one with a worker: the name of that.
    worker text,
    -- Others may write rows without this check: see `damage.rs`, which has the same rules.
    constraint readable check (state = 3 or {readable}),
    primary key (queue, key)
) strict, without rowid;

create index keys_ready on keys (queue, priority, at) where state = 0;
create index keys_leases on keys (queue, lease_until) where state = 1;
create index keys_parked on keys (queue, key) where state = 2;
