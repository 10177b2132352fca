-- Functions that open a queue, and adds for programs in other languages.

-- Returns the id and the settings of the queue with this name. The settings are: whether re-adds are held, whether adds
-- revive parked keys, the rule that assigns keys to groups, the limit of the groups, and the rate of all starts.
-- Returns no row if the queue does not exist.
create or replace function requeue.find(name text)
returns table (id integer, holds boolean, revives boolean, group_by text, group_limit integer, rate bigint[])
language sql stable {definer}
begin atomic
    select q.id, q.hold, q.revive, q.group_by, q.group_limit, q.rate from requeue.queues q where q.name = find.name;
end;

-- Returns the same row as `find`, after it has created the queue if it did not exist. If `group_by` is empty, each add
-- names the group. `rate` has the number of starts, their period in microseconds, and the burst.
create or replace function requeue.open(
    name text, hold boolean default true, revive boolean default true,
    inout group_by text default null, inout group_limit integer default null,
    inout rate bigint[] default null,
    out id integer, out holds boolean, out revives boolean
)
language plpgsql {definer} set lock_timeout = '5s' as $$
declare
    -- A search that finds nothing sets the output parameters to null, so their values are copied.
    wanted_by constant text := open.group_by;
    wanted_limit constant integer := open.group_limit;
    wanted_rate constant bigint[] := open.rate;
begin
    loop
        select f.id, f.holds, f.revives, f.group_by, f.group_limit, f.rate
        into open.id, open.holds, open.revives, open.group_by, open.group_limit, open.rate
        from requeue.find(open.name) f;
        exit when found;
        if wanted_limit < 1 then
            raise exception 'invalid limit % of the groups of queue %: use at least 1', wanted_limit, quote_literal(name)
                using errcode = 'invalid_parameter_value';
        elsif wanted_limit is not null and wanted_by is null then
            raise exception 'the queue % has a limit of its groups, and no groups', quote_literal(name)
                using errcode = 'invalid_parameter_value', hint = 'With group_by => '''', each add names the group.';
        end if;
        insert into requeue.queues (name, hold, revive, group_by, group_limit, has_group_limits, rate)
        values (open.name, open.hold, open.revive, wanted_by, wanted_limit, wanted_limit is not null, wanted_rate)
        on conflict do nothing;
    end loop;
end $$;

-- Returns the row of the queue with this name. Raises an error if there is no such queue.
create or replace function requeue.known_queue(name text) returns requeue.queues
language plpgsql stable as $$
declare
    place requeue.queues;
begin
    select q.* into place from requeue.queues q where q.name = known_queue.name;
    if not found then
        raise exception 'no such queue: %', quote_nullable(name)
            using errcode = 'undefined_object', hint = 'select requeue.open(''...'') creates it.';
    end if;
    return place;
end $$;

-- Adds keys, each with a separate delay in microseconds, merge and revival (encoded by `how_number`), priority and
-- flags. `mosts` has the longest wait of each debounced add. In a queue with groups, `groups` has the group of each
-- key. No key may occur twice. Returns the answers in the order of the keys' bytes: see `answers`.
create or replace function requeue.add_each(
    queue text, keys bytea[], afters bigint[], hows smallint[], priorities smallint[],
    flags integer[], mosts bigint[], groups text[] default null
) returns smallint[]
language plpgsql {definer} as $$
declare
    place constant requeue.queues := requeue.known_queue(queue);
begin
    perform requeue.checked(k) from unnest(keys) k;
    return requeue.add_all(place.id, keys, afters, hows, priorities, flags,
        array_fill(1, array[cardinality(keys)]), mosts, groups);
end $$;

-- Adds a key to a queue, in the transaction of the caller. See the documentation of requeue-store.
create or replace function requeue.add(
    queue text, key bytea, after interval default '0', merge text default 'earliest',
    priority text default 'normal', flags integer default 0, revive boolean default false,
    debounce interval default null, at_most interval default null, "group" text default null
) returns text
language plpgsql {definer} as $$
declare
    answers smallint[] := requeue.add_each(queue, array[key],
        array[requeue.delay(coalesce(debounce, after))], array[requeue.how_number(merge, revive)],
        array[requeue.priority_number(priority)], array[flags],
        array[requeue.longest_wait(after, debounce, at_most)], array["group"]);
begin
    return (requeue.answers())[answers[1] + 1];
end $$;

create or replace function requeue.add(
    queue text, key text, after interval default '0', merge text default 'earliest',
    priority text default 'normal', flags integer default 0, revive boolean default false,
    debounce interval default null, at_most interval default null, "group" text default null
) returns text
language sql {definer}
    return requeue.add(queue, convert_to(key, 'UTF8'), after, merge, priority, flags, revive, debounce,
        at_most, "group");

-- Adds all keys in a fixed order, so that two calls do not deadlock. Returns one row, which has the number of keys for
-- each answer of `add`.
create or replace function requeue.add_many(
    queue text, keys bytea[], after interval default '0', merge text default 'earliest',
    priority text default 'normal', flags integer default 0, revive boolean default false,
    debounce interval default null, at_most interval default null, "group" text default null
) returns table (
    new bigint, coalesced bigint, dirty bigint, backing_off bigint, revived bigint, parked bigint
)
language plpgsql {definer} as $$
declare
    different bytea[] := array(select distinct k from unnest(keys) k);
    size integer[] := array[cardinality(different)];
    answers smallint[] := requeue.add_each(queue, different,
        array_fill(requeue.delay(coalesce(debounce, after)), size),
        array_fill(requeue.how_number(merge, revive), size),
        array_fill(requeue.priority_number(priority), size), array_fill(flags, size),
        array_fill(requeue.longest_wait(after, debounce, at_most), size), array_fill("group", size));
begin
    return query
    select count(*) filter (where a.name = 'new'), count(*) filter (where a.name = 'coalesced'),
        count(*) filter (where a.name = 'dirty'), count(*) filter (where a.name = 'backing_off'),
        count(*) filter (where a.name = 'revived'), count(*) filter (where a.name = 'parked')
    from (select (requeue.answers())[n + 1] as name from unnest(answers) n) a;
end $$;

create or replace function requeue.add_many(
    queue text, keys text[], after interval default '0', merge text default 'earliest',
    priority text default 'normal', flags integer default 0, revive boolean default false,
    debounce interval default null, at_most interval default null, "group" text default null
) returns table (
    new bigint, coalesced bigint, dirty bigint, backing_off bigint, revived bigint, parked bigint
)
language plpgsql {definer} as $$
begin
    return query
    select * from requeue.add_many(queue, array(select convert_to(k, 'UTF8') from unnest(keys) k),
        after, merge, priority, flags, revive, debounce, at_most, "group");
end $$;

-- Stores a schedule, which adds a key again at each of its times. The schedule is a cron expression with a time zone,
-- or `every` and a period. A process that claims keys of the queue computes the times.
create or replace function requeue.schedule(
    queue text, key bytea, spec text, zone text default null, priority text default 'normal',
    "group" text default null
) returns void
language plpgsql {definer} as $$
declare
    place constant requeue.queues := requeue.known_queue(queue);
    is_period constant boolean := spec like 'every %';
begin
    perform requeue.check_groups(place.group_by, array["group"], 1);
    if spec is null or octet_length(spec) > 200 or not is_period and spec not like '@%'
        and cardinality(regexp_split_to_array(btrim(spec, E' \t'), '[ \t]+')) <> 5
    then
        raise exception 'invalid schedule %: use a cron expression of five fields, or every and a period',
            quote_nullable(left(spec, 200))
            using errcode = 'invalid_parameter_value', hint = 'Examples: 0 9 * * MON-FRI, every 5m.';
    elsif is_period and zone <> '' then
        raise exception 'a period has no time zone, and the schedule has %', quote_literal(left(zone, 200))
            using errcode = 'invalid_parameter_value', hint = 'Omit the zone.';
    elsif not is_period and not exists (
        select from pg_timezone_names z where lower(z.name) = lower(schedule.zone)
    ) then
        raise exception 'unknown time zone %', quote_nullable(left(zone, 200))
            using errcode = 'invalid_parameter_value',
            hint = 'Use a name of the IANA database, such as Europe/Berlin or UTC.';
    end if;
    perform requeue.put_schedule(place.id, key, spec, coalesce(zone, ''), requeue.priority_number(priority),
        case when place.group_by is not null then coalesce("group", '') end);
end $$;

create or replace function requeue.schedule(
    queue text, key text, spec text, zone text default null, priority text default 'normal',
    "group" text default null
) returns void
language sql {definer}
    return requeue.schedule(queue, convert_to(key, 'UTF8'), spec, zone, priority, "group");

-- Lists the schedules of a queue. `next` is null if the schedule is paused, or no process has computed its next time
-- yet.
create or replace function requeue.list_schedules(queue text)
returns table (
    key bytea, spec text, zone text, next timestamptz, paused boolean, error text, priority text, "group" text
)
language sql stable {definer}
begin atomic
    select s.key, s.spec, nullif(s.zone, ''),
        case when s.due_at > 0 then to_timestamp(s.due_at / 1000000.0) end,
        s.due_at is null, s.error, (array['low', 'normal', 'high'])[s.priority + 2], s.grp
    from requeue.schedules s join requeue.queues q on q.id = s.queue
    where q.name = list_schedules.queue order by s.key;
end;

-- The following functions return false if the key has no schedule, or if there is no such queue.
create or replace function requeue.unschedule(queue text, key bytea) returns boolean
language sql {definer}
    return coalesce((select requeue.remove_schedule(f.id, unschedule.key) from requeue.find(queue) f), false);

create or replace function requeue.unschedule(queue text, key text) returns boolean
language sql {definer}
    return requeue.unschedule(queue, convert_to(key, 'UTF8'));

create or replace function requeue.pause_schedule(queue text, key bytea) returns boolean
language sql {definer}
    return coalesce(
        (select requeue.set_schedule_paused(f.id, pause_schedule.key, true) from requeue.find(queue) f), false);

create or replace function requeue.pause_schedule(queue text, key text) returns boolean
language sql {definer}
    return requeue.pause_schedule(queue, convert_to(key, 'UTF8'));

create or replace function requeue.resume_schedule(queue text, key bytea) returns boolean
language sql {definer}
    return coalesce(
        (select requeue.set_schedule_paused(f.id, resume_schedule.key, false) from requeue.find(queue) f), false);

create or replace function requeue.resume_schedule(queue text, key text) returns boolean
language sql {definer}
    return requeue.resume_schedule(queue, convert_to(key, 'UTF8'));

create or replace function requeue.delay(after interval) returns bigint language sql immutable
    return least(greatest(ceil(extract(epoch from after) * 1000000), 0), 9223372036854775807)::bigint;

-- Returns the longest wait of a debounced add, in microseconds. Returns null for any other add.
create or replace function requeue.longest_wait(after interval, debounce interval, at_most interval)
returns bigint
language plpgsql immutable as $$
begin
    if after <> '0' and debounce is not null then
        raise exception 'an add has either a delay or debounce: omit one of them'
            using errcode = 'invalid_parameter_value';
    elsif at_most is not null and debounce is null then
        raise exception 'at_most needs debounce' using errcode = 'invalid_parameter_value';
    elsif requeue.delay(debounce) > 0 then
        return case
            when at_most is null then 9223372036854775807
            else greatest(requeue.delay(at_most), requeue.delay(debounce))
        end;
    end if;
    return null;
end $$;

create or replace function requeue.how_number(merge text, revive boolean) returns smallint
language plpgsql immutable as $$
declare
    how integer := array_position(array['earliest', 'latest', 'exactly'], merge) - 1;
begin
    if how is null then
        raise exception 'invalid merge %: use earliest, latest or exactly', quote_nullable(merge)
            using errcode = 'invalid_parameter_value';
    end if;
    return how + case when revive then 4 else 0 end;
end $$;

create or replace function requeue.priority_number(priority text) returns smallint
language plpgsql immutable as $$
declare
    number integer := array_position(array['low', 'normal', 'high'], priority) - 2;
begin
    if number is null then
        raise exception 'invalid priority %: use low, normal or high', quote_nullable(priority)
            using errcode = 'invalid_parameter_value';
    end if;
    return number;
end $$;

create or replace function requeue.checked(key bytea) returns bytea
language plpgsql as $$
begin
    if key is null then
        raise exception 'the key is null; pass a bytea or a text' using errcode = 'null_value_not_allowed';
    elsif octet_length(key) > 2048 then
        raise exception 'the key has % bytes; at most 2048 are allowed', octet_length(key)
            using errcode = 'program_limit_exceeded';
    end if;
    return key;
end $$;
