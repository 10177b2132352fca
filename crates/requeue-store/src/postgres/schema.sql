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

-- A row for each key that has a state.
create table requeue.keys (
    queue integer not null,
    -- 0: ready or waiting; 1: with a worker; 2: parked.
    state smallint not null,
    priority smallint not null check (priority between -1 and 1),
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
