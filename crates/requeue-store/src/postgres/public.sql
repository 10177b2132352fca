-- For everybody, and what they need.

-- The number and the settings of a queue, which is made if there is none: whether its adds are held
-- back, and whether they revive parked keys.
create function requeue.open(
    name text, hold boolean default false, revive boolean default true,
    out id integer, out holds boolean, out revives boolean
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
begin
    select q.id, q.hold, q.revive into open.id, open.holds, open.revives
    from requeue.queues q where q.name = open.name;
    if not found then
        insert into requeue.queues (name, hold, revive) values (open.name, open.hold, open.revive)
        on conflict do nothing;
        select q.id, q.hold, q.revive into open.id, open.holds, open.revives
        from requeue.queues q where q.name = open.name;
    end if;
end $$;

-- For everybody: adds a key to a queue, in whatever transaction. See the documentation of
-- requeue-store.
create function requeue.add(
    queue text, key bytea, after interval default '0', merge text default 'earliest',
    priority text default 'normal', reasons integer default 0, revive boolean default false
) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    number integer := requeue.queue_number(queue);
    how integer := array_position(array['earliest', 'latest', 'exactly'], merge) - 1;
    band integer := array_position(array['low', 'normal', 'high'], priority) - 2;
    answers smallint[];
begin
    if how is null then
        raise exception 'merge is earliest, latest or exactly, and not %', quote_nullable(merge)
            using errcode = 'invalid_parameter_value';
    elsif band is null then
        raise exception 'priority is low, normal or high, and not %', quote_nullable(priority)
            using errcode = 'invalid_parameter_value';
    end if;
    answers := requeue.add_all(number, array[requeue.checked(key)],
        array[greatest(ceil(extract(epoch from after) * 1000000), 0)::bigint],
        array[how + case when revive then 4 else 0 end]::smallint[], array[band]::smallint[],
        array[reasons], array[1]);
    return requeue.answer_name(answers[1]);
end $$;

create function requeue.add(
    queue text, key text, after interval default '0', merge text default 'earliest',
    priority text default 'normal', reasons integer default 0, revive boolean default false
) returns text
language sql security definer set search_path = pg_catalog, pg_temp
    return requeue.add(queue, convert_to(key, 'UTF8'), after, merge, priority, reasons, revive);

-- For everybody: adds all of them, in one order, whatever theirs. How many were not pending before.
create function requeue.add_many(queue text, keys text[]) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    number integer := requeue.queue_number(queue);
    bytes bytea[];
    n integer;
begin
    select array_agg(distinct requeue.checked(convert_to(k, 'UTF8'))) into bytes
    from unnest(keys) k;
    if bytes is null then
        return 0;
    end if;
    n := cardinality(bytes);
    return (
        select count(*) from unnest(requeue.add_all(number, bytes, array_fill(0::bigint, array[n]),
            array_fill(0::smallint, array[n]), array_fill(0::smallint, array[n]),
            array_fill(0, array[n]), array_fill(1, array[n]))) a
        where a = 0
    );
end $$;

create function requeue.queue_number(name text) returns integer
language plpgsql as $$
declare
    id integer;
begin
    select q.id into id from requeue.queues q where q.name = queue_number.name;
    if not found then
        raise exception 'there is no queue %', quote_nullable(name)
            using errcode = 'undefined_object', hint = 'select requeue.open(''...'') makes one.';
    end if;
    return id;
end $$;

create function requeue.checked(key bytea) returns bytea
language plpgsql as $$
begin
    if key is null then
        raise exception 'a key is null' using errcode = 'null_value_not_allowed';
    elsif octet_length(key) > 2048 then
        raise exception 'a key of % bytes; 2048 are the most', octet_length(key)
            using errcode = 'program_limit_exceeded';
    end if;
    return key;
end $$;

-- Whoever may do what is said by grants alone.
revoke all on all functions in schema requeue from public;
