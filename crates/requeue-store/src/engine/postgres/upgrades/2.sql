-- Version 2: groups, rates, schedules, activity, failed runs, and actions of operators.

alter table requeue.queues
    -- The regular expression that extracts the group from a key. If it is an empty text, each add names the group. It
    -- is null if the queue has no groups.
    add group_by text,
    -- The limit of keys in flight for groups without a separate limit.
    add group_limit integer check (group_limit > 0),
    -- The rate of all starts: the number of starts, the period in microseconds, and the burst. See `Rate::check`.
    add rate bigint[] check (
        cardinality(rate) = 3 and array_position(rate, null) is null and 0 < all (rate)
        and rate[1] <= 4294967295 and rate[3] <= 4294967295 and rate[2]::numeric * rate[3] <= 1125899906842624
    ),
    -- True if a group has a rate, or once had one.
    add has_group_rates boolean not null default false,
    -- True if a group has a limit, or once had one. See `begin_limits`.
    add has_group_limits boolean not null default false;

-- One row for each group that has settings.
create table requeue.groups (
    queue integer not null,
    name text collate "C" not null,
    -- The limit of the group's keys in flight.
    most integer check (most > 0),
    -- The number of keys that are delivered in one turn.
    weight integer not null default 1 check (weight > 0),
    -- True if the group is paused. No key of the group is then delivered.
    paused boolean not null default false,
    -- The rate of the group's starts, in the same form as for queues.
    rate bigint[] check (
        cardinality(rate) = 3 and array_position(rate, null) is null and 0 < all (rate)
        and rate[1] <= 4294967295 and rate[3] <= 4294967295 and rate[2]::numeric * rate[3] <= 1125899906842624
    ),
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

alter table requeue.keys
    -- The name of the group, without control characters. It is empty if the add names no group or the pattern does not
    -- match the key, and null if the queue has no groups.
    add grp text collate "C" check (octet_length(grp) <= 100 and grp !~ '[\u0001-\u001f\u007f-\u009f]'),
    -- True if the queue has groups, a run of the key is pending, and the key was due when its row was written. See
    -- `turns.sql`.
    add is_due boolean not null default false,
    -- For a key in flight, true if it counts towards the limit of its group. See `begin_limits`.
    add is_counted boolean not null default false;

drop index requeue.keys_ready;
create index keys_ready on requeue.keys (queue, priority, at) where state = 0 and grp is null;
-- These indexes are for queues with groups: see `turns.sql`.
create index keys_turns on requeue.keys (queue, priority, grp, at) where state = 0 and is_due and grp is not null;
create index keys_delayed on requeue.keys (queue, at) where state = 0 and not is_due and grp is not null;
-- (The token makes the entries of a group distinct. If entries are equal, the server tries to merge them, which slows
-- down writes.)
create index keys_of_group on requeue.keys (queue, grp, epoch) where state = 1 and is_counted;

-- A group that a claim visits. `used` is the number of keys that it has received in its turn, and `is_next` is true if
-- its turn comes next. `most` is the limit of keys in flight, or null.
create type requeue.turn as (
    priority integer, name text collate "C", used bigint, is_next boolean, weight integer, most integer, rate bigint[]
);

-- The schedules, which add keys again at certain times. See `schedules.sql`.
create table requeue.schedules (
    queue integer not null,
    key bytea not null check (octet_length(key) <= 2048),
    -- Either a cron expression and its time zone, or a period and an empty text.
    spec text not null,
    zone text not null,
    priority smallint not null check (priority between -1 and 1),
    -- The group of the schedule's adds, or null if the queue has no groups.
    grp text collate "C" check (octet_length(grp) <= 100 and grp !~ '[\u0001-\u001f\u007f-\u009f]'),
    -- The time of the next add. If `is_new` is true, this is the time at which the schedule began, or the last time
    -- before a pause.
    next_at bigint not null check (next_at >= 0),
    -- True if a process must compute the next time, without adding the key.
    is_new boolean not null,
    paused boolean not null default false,
    -- The reason why a process has refused the schedule.
    error text,
    -- The time from which a process must handle the schedule.
    due_at bigint generated always as (
        case when not paused and error is null then case when is_new then 0 else next_at end end
    ) stored,
    primary key (queue, key)
);
create index schedules_due on requeue.schedules (queue, due_at) where due_at is not null;

-- The activity of a queue in each minute. See `engine/activity.rs`.
create table requeue.activity (
    queue integer not null,
    minute bigint not null,
    -- Identifies the process. It is empty for the sum of all processes.
    instance text collate "C" not null,
    -- The name of the worker. It is empty if the process claims no keys.
    worker text not null,
    -- The time of the last write.
    at bigint not null,
    adds bigint not null,
    coalesced bigint not null,
    starts bigint not null,
    successes bigint not null,
    failures bigint not null,
    given_up bigint not null,
    -- The histograms: see `encode_times`.
    times bytea not null,
    primary key (queue, minute, instance)
) with (fillfactor = 70);
create index activity_parts on requeue.activity (queue, minute) where instance <> '';

-- The time of the last failure, or null if the key has no rows in `attempts`.
alter table requeue.keys add failed_at bigint check (failed_at >= 0);

-- The last failed runs of a key. See `attempts.sql`.
create table requeue.attempts (
    queue integer not null,
    key bytea not null,
    slot smallint not null check (slot between 0 and 2),
    number integer not null check (number >= 0),
    -- The time at which the run ended.
    at bigint not null,
    took bigint not null,
    worker text,
    exit_status integer,
    error text not null,
    output text not null,
    primary key (queue, key, slot)
);
create index attempts_at on requeue.attempts (queue, at);

alter type requeue.ends
    add attribute tooks bigint[], add attribute statuses integer[], add attribute outputs text[];
-- The last actions of operators: see `types/action.rs`.
create table requeue.actions (
    queue integer not null,
    number bigint generated always as identity,
    at bigint not null,
    action text not null check (octet_length(action) <= 50),
    -- The person or the program that acted.
    who text not null check (octet_length(who) <= 200),
    -- The key or group that the action changed, or the number of changed keys. It is empty if the action concerns the
    -- whole queue.
    target text not null check (octet_length(target) <= 200),
    note text not null check (octet_length(note) <= 500),
    primary key (queue, number)
);

-- The trace contexts of the pending run's adds, one per line, and the trace contexts of the run in flight.
alter table requeue.keys add trace text, add run_trace text;

-- The last completed runs: see `engine/past.rs`. This is the last column, because the server logs only the changed part
-- of a row that stays on its page.
alter table requeue.keys add past bytea check (octet_length(past) <= 64);
