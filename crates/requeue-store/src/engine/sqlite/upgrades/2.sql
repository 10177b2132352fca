-- Version 2: groups, rates, schedules, activity, failed runs, and actions of operators.

-- The pattern that extracts the group from a key. If it is an empty text, each add names the group. It is null if the
-- queue has no groups.
alter table queues add column group_by text;
-- The limit of keys in flight for groups without a separate limit.
alter table queues add column group_limit integer check (group_limit between 1 and 4294967295);
-- The rate of all starts: the number of starts, the period in microseconds, and the burst, with spaces between them.
alter table queues add column rate text;
-- The time from which the rate permits the next start: see `Gate`.
alter table queues add column next_at integer not null default 0 check (next_at >= 0);
-- 1 if a group has a rate, or once had one.
alter table queues add column has_group_rates integer not null default 0 check (has_group_rates in (0, 1));

-- One row for each group that has settings.
create table groups (
    queue integer not null,
    name text not null,
    -- The limit of the group's keys in flight.
    most integer check (most between 1 and 4294967295),
    -- The number of keys that are delivered in one turn.
    weight integer not null default 1 check (weight between 1 and 4294967295),
    -- 1 if the group is paused. No key of the group is then delivered.
    paused integer not null default 0 check (paused in (0, 1)),
    -- The rate of the group's starts, in the same form as for queues.
    rate text,
    next_at integer not null default 0 check (next_at >= 0),
    primary key (queue, name)
) strict, without rowid;

-- The name of the group, without control characters. It is empty if the add names no group or the pattern does not
-- match the key, and null if the queue has no groups.
alter table keys add column grp text check (
    length(cast(grp as blob)) <= 100
    and grp not glob '*[' || char(1, 45, 31, 127, 45, 159) || ']*'
    and instr(grp, char(0)) = 0
);
-- 1 if the queue has groups and the key was ready when its row was written. See `turns.rs`.
alter table keys add column is_due integer not null default 0 check (is_due in (0, 1));

drop index keys_ready;
create index keys_ready on keys (queue, priority, at) where state = 0 and grp is null;
-- These indexes are for queues with groups: see `turns.rs`.
create index keys_turns on keys (queue, priority, grp, at) where state = 0 and is_due = 1;
create index keys_delayed on keys (queue, at) where state = 0 and is_due = 0 and grp is not null;
create index keys_of_group on keys (queue, grp) where state = 1 and grp is not null;
create index groups_rated on groups (queue, next_at) where rate is not null;

-- The earliest `due_at` of the queue's schedules.
alter table queues add column schedule_at integer;

-- The schedules, which add keys again at certain times. See `schedules.rs`.
create table schedules (
    queue integer not null,
    key blob not null check (length(key) <= 2048),
    -- Either a cron expression and its time zone, or a period and an empty text.
    spec text not null,
    zone text not null,
    priority integer not null check (priority between -1 and 1),
    -- The group of the schedule's adds, or null if the queue has no groups.
    grp text,
    -- The time of the next add. If `is_new` is 1, this is the time at which the schedule began, or the last time before
    -- a pause.
    next_at integer not null check (next_at >= 0),
    -- 1 if a process must compute the next time, without adding the key.
    is_new integer not null check (is_new in (0, 1)),
    paused integer not null default 0 check (paused in (0, 1)),
    -- The reason why a process has refused the schedule.
    error text,
    -- The time from which a process must handle the schedule.
    due_at integer generated always as (
        case when paused = 0 and error is null then iif(is_new, 0, next_at) end
    ) stored,
    primary key (queue, key)
) strict, without rowid;

create index schedules_due on schedules (queue, due_at) where due_at is not null;

-- The activity of a queue in each minute. See `engine/activity.rs`.
create table activity (
    queue integer not null,
    minute integer not null,
    -- Identifies the process. It is empty for the sum of all processes.
    instance text not null,
    -- The name of the worker. It is empty if the process claims no keys.
    worker text not null,
    -- The time of the last write.
    at integer not null,
    adds integer not null,
    coalesced integer not null,
    starts integer not null,
    successes integer not null,
    failures integer not null,
    given_up integer not null,
    -- The histograms: see `encode_times`.
    times blob not null,
    primary key (queue, minute, instance)
) strict, without rowid;

create index activity_parts on activity (queue, minute) where instance <> '';

-- The time of the last failure, or null if the key has no failures.
alter table keys add column failed_at integer check (failed_at >= 0);

-- The last failed runs of a key. See `engine/attempts.rs`.
create table attempts (
    queue integer not null,
    key blob not null,
    slot integer not null check (slot between 0 and 2),
    number integer not null check (number between 0 and 4294967295),
    -- The time at which the run ended.
    at integer not null,
    took integer not null,
    worker text,
    exit_status integer check (exit_status between -2147483648 and 2147483647),
    error text not null,
    output text not null,
    primary key (queue, key, slot)
) strict;

create index attempts_at on attempts (queue, at);
-- The last actions of operators: see `types/action.rs`.
create table actions (
    queue integer not null,
    -- The number grows with each action on the queue.
    number integer not null,
    at integer not null,
    action text not null,
    -- The person or the program that acted.
    who text not null,
    -- The key or group that the action changed, or the number of changed keys. It is empty if the action concerns the
    -- whole queue.
    target text not null,
    note text not null,
    primary key (queue, number)
) strict, without rowid;

-- The trace contexts of the pending run's adds, one per line, and the trace contexts of the run in flight.
alter table keys add column trace text;
alter table keys add column run_trace text;
-- The last completed runs: see `engine/past.rs`.
alter table keys add column past blob check (length(past) <= 64);
