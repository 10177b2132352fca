-- Version 2: groups, rates, schedules, activity, failed runs, and actions of operators.

-- The pattern that extracts the group from the key. Null means that the queue has no groups, and an empty text that
-- each add names the group.
alter table queues add column group_by text;
-- The limit of keys in flight of each group without a separate limit.
alter table queues add column group_limit integer check (group_limit between 1 and 4294967295);
-- The rate of all starts: the number of starts, their period in microseconds, and the burst, with spaces between them.
alter table queues add column rate text;
-- The time from which the rate permits the next start: see `Gate`.
alter table queues add column next_at integer not null default 0 check (next_at >= 0);
-- 1 if a group has or had a rate.
alter table queues add column has_group_rates integer not null default 0 check (has_group_rates in (0, 1));

-- One row for each group that has settings.
create table groups (
    queue integer not null,
    name text not null,
    -- The limit of keys in flight.
    most integer check (most between 1 and 4294967295),
    -- The number of keys in one turn.
    weight integer not null default 1 check (weight between 1 and 4294967295),
    -- 1 if the group is paused, so that it delivers no key.
    paused integer not null default 0 check (paused in (0, 1)),
    -- The rate of the group's starts, encoded as for queues.
    rate text,
    next_at integer not null default 0 check (next_at >= 0),
    primary key (queue, name)
) strict, without rowid;

-- The group, without control characters. Null means that the queue has no groups, and an empty text that the key is in
-- no group.
alter table keys add column grp text check (
    length(cast(grp as blob)) <= 100
    and grp not glob '*[' || char(1, 45, 31, 127, 45, 159) || ']*'
    and instr(grp, char(0)) = 0
);
-- 1 for a key of a queue with groups if it was ready when the row was written. See `turns.rs`.
alter table keys add column is_due integer not null default 0 check (is_due in (0, 1));

drop index keys_ready;
create index keys_ready on keys (queue, priority, at) where state = 0 and grp is null;
-- For queues with groups: see `turns.rs`.
create index keys_turns on keys (queue, priority, grp, at) where state = 0 and is_due = 1;
create index keys_delayed on keys (queue, at) where state = 0 and is_due = 0 and grp is not null;
create index keys_of_group on keys (queue, grp) where state = 1 and grp is not null;
create index groups_rated on groups (queue, next_at) where rate is not null;

-- The earliest `due_at` of the schedules.
alter table queues add column schedule_at integer;

-- The keys that are added again at certain times. See `schedules.rs`.
create table schedules (
    queue integer not null,
    key blob not null check (length(key) <= 2048),
    -- A cron expression and its time zone, or a period.
    spec text not null,
    zone text not null,
    priority integer not null check (priority between -1 and 1),
    -- The group of the adds, or null if the queue has no groups.
    grp text,
    -- The next time. If `is_new` is 1, this is the time at which the schedule began, or the last time before a pause.
    next_at integer not null check (next_at >= 0),
    -- 1 if a process must compute the next time without adding the key.
    is_new integer not null check (is_new in (0, 1)),
    paused integer not null default 0 check (paused in (0, 1)),
    -- The reason why a process has refused the schedule.
    error text,
    -- The time at which a process must look at the schedule.
    due_at integer generated always as (
        case when paused = 0 and error is null then iif(is_new, 0, next_at) end
    ) stored,
    primary key (queue, key)
) strict, without rowid;

create index schedules_due on schedules (queue, due_at) where due_at is not null;

-- The activity of each minute. See `engine/activity.rs`.
create table activity (
    queue integer not null,
    minute integer not null,
    -- The process, or an empty text for the sum of all processes.
    instance text not null,
    -- The name of the worker, or an empty text if the process claims no keys.
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

-- The time of the last failure, or null if no failure is counted.
alter table keys add column failed_at integer check (failed_at >= 0);

-- The last failed runs of each failing key. See `engine/attempts.rs`.
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
    -- A number that increases with each action of the queue.
    number integer not null,
    at integer not null,
    action text not null,
    -- The person or the program that acted.
    who text not null,
    -- The key, the group or the number of keys, or an empty text for the queue.
    target text not null,
    note text not null,
    primary key (queue, number)
) strict, without rowid;

-- The trace contexts of the adds of the pending run, one per line, and those of the run in flight.
alter table keys add column trace text;
alter table keys add column run_trace text;
-- The last completed runs: see `engine/past.rs`.
alter table keys add column past blob check (length(past) <= 64);
