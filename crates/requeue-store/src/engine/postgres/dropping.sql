-- Drops of queues, and how all else learns of them. A queue's number is never used again, so whoever has
-- a dropped queue open finds no queue, also if there is one of the same name again.

-- Fails if the queue was dropped. Functions that change or find no key call this, so that it costs nothing
-- where there is one.
create function requeue.check_queue(in_queue integer) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if not exists (select from requeue.queues q where q.id = in_queue) then
        raise exception 'the queue with the number % was dropped', in_queue using errcode = 'RQ001';
    end if;
end $$;

-- Keeps the queue from being dropped until the transaction ends. Only adds need this: nothing else makes a
-- row. It waits for a drop in progress. Many transactions can have it at once.
create function requeue.keep_queue(in_queue integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    -- The first number is "rqqu" in bytes.
    perform pg_advisory_xact_lock_shared(1920037237, in_queue);
    if current_setting('transaction_isolation') <> 'read committed' then
        -- A snapshot from before the drop still has the queue: then this fails (40001).
        perform from requeue.queues q where q.id = in_queue for key share;
    end if;
end $$;

-- Drops a queue that has no keys, or with `force` any. Returns whether it was dropped, null if there is no
-- such queue, and how many keys it had or has.
create function requeue.drop_queue(
    name text, force boolean default false, out dropped boolean, out ready bigint,
    out waiting bigint, out processing bigint, out dirty bigint, out parked bigint,
    out damaged bigint
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
    in_queue integer := (select f.id from requeue.find(name) f);
    t bigint := requeue.now();
    -- Adds wait for the lock, and so they do while this waits for it: not where it is of no use.
    is_locked boolean := force or not exists (select from requeue.keys x where x.queue = in_queue);
begin
    if in_queue is null then
        return;
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        -- The count must see the adds for which the lock was waiting.
        raise exception 'requeue.drop_queue needs the isolation level read committed'
            using errcode = 'feature_not_supported';
    end if;
    loop
        if is_locked then
            perform pg_advisory_xact_lock(1920037237, in_queue);
            if not exists (select from requeue.queues q where q.id = in_queue) then
                -- Another drop was first.
                return;
            end if;
            if force then
                -- In the order of all who wait for keys: batches in several orders deadlock.
                perform from requeue.keys x where x.queue = in_queue order by x.key for update;
            end if;
        end if;
        select count(*) filter (where x.state = 0 and x.at <= t),
            count(*) filter (where x.state = 0 and x.at > t),
            count(*) filter (where x.state = 1),
            count(*) filter (where x.state = 1 and x.at <= t),
            count(*) filter (where x.state = 2),
            count(*) filter (where x.state is null)
        into ready, waiting, processing, dirty, parked, damaged
        from (
            -- (`offset 0`: each row is checked once.)
            select case when requeue.is_readable(k) then k.state end as state, k.at
            from requeue.keys k where k.queue = in_queue offset 0
        ) x;
        dropped := force or ready + waiting + processing + parked + damaged = 0;
        if not dropped then
            return;
        end if;
        -- Keys that were there have gone meanwhile: without the lock, others may be on their way.
        exit when is_locked;
        is_locked := true;
    end loop;
    delete from requeue.renewals r using requeue.keys x
    where x.queue = in_queue and x.state = 1 and r.epoch = x.epoch;
    delete from requeue.keys x where x.queue = in_queue;
    delete from requeue.queues q where q.id = in_queue;
    perform requeue.wake(in_queue);
end $$;
