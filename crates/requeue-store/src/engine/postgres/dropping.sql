-- Drops queues, and makes other operations fail on a dropped queue. The id of a queue is never reused. Therefore, a
-- process that has a dropped queue open does not find a new queue of the same name.

-- Raises an error if the queue was dropped. A function calls this check only if it has neither changed nor found a key,
-- so most calls do not need the check.
create or replace function requeue.check_queue(in_queue integer) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if not exists (select from requeue.queues q where q.id = in_queue) then
        raise exception 'the queue with the number % was dropped', in_queue using errcode = 'RQ001';
    end if;
end $$;

-- Prevents a drop of the queue until the transaction ends. Waits for a drop that is in progress. Many transactions can
-- hold this lock at the same time. Adds and records of actions need it. Completions also insert rows, but do not need
-- it: they hold the lock of a key, and a drop waits for that lock.
create or replace function requeue.keep_queue(in_queue integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    -- The bytes of the first number are "rqqu".
    perform pg_advisory_xact_lock_shared(1920037237, in_queue);
    if current_setting('transaction_isolation') <> 'read committed' then
        -- A snapshot that is older than the drop still contains the queue. In a transaction with such a snapshot, this
        -- statement fails (40001).
        perform from requeue.queues q where q.id = in_queue for key share;
    end if;
end $$;

-- Drops a queue that has neither keys nor schedules, or any queue if `force` is true. `dropped` is true if the queue
-- was dropped, and null if there is no such queue. The other results are the numbers of keys and schedules before the
-- call.
create or replace function requeue.drop_queue(
    name text, force boolean default false, out dropped boolean, out ready bigint,
    out waiting bigint, out in_flight bigint, out dirty bigint, out parked bigint, out schedules bigint
)
language plpgsql {definer} set lock_timeout = '5s' as $$
declare
    in_queue integer := (select f.id from requeue.find(name) f);
    t bigint := requeue.now();
    -- Adds wait while this transaction waits for the lock. Therefore, it takes the lock only if it needs the lock.
    is_locked boolean := force or not exists (select from requeue.keys x where x.queue = in_queue)
        and not exists (select from requeue.schedules s where s.queue = in_queue);
begin
    if in_queue is null then
        return;
    end if;
    -- The count must include the adds for which this transaction has waited.
    perform requeue.check_isolation('drop_queue');
    loop
        if is_locked then
            perform pg_advisory_xact_lock(1920037237, in_queue);
            if not exists (select from requeue.queues q where q.id = in_queue) then
                -- Another transaction has dropped the queue.
                return;
            end if;
            if force then
                -- All transactions lock keys in the same order, because different orders can deadlock.
                perform from requeue.keys x where x.queue = in_queue order by x.key for update;
            end if;
        end if;
        select {counts} into ready, waiting, in_flight, dirty, parked
        from requeue.keys x where x.queue = in_queue;
        select count(*) into schedules from requeue.schedules s where s.queue = in_queue;
        dropped := force or ready + waiting + in_flight + parked + schedules = 0;
        if not dropped then
            return;
        end if;
        -- Without the lock, adds in progress could insert keys after this count.
        exit when is_locked;
        is_locked := true;
    end loop;
    delete from requeue.renewals r using requeue.keys x
    where x.queue = in_queue and x.state = 1 and r.epoch = x.epoch;
    delete from requeue.keys x where x.queue = in_queue;
    delete from requeue.groups g where g.queue = in_queue;
    delete from requeue.rates r where r.queue = in_queue;
    delete from requeue.schedules s where s.queue = in_queue;
    delete from requeue.activity a where a.queue = in_queue;
    delete from requeue.attempts a where a.queue = in_queue;
    delete from requeue.actions a where a.queue = in_queue;
    delete from requeue.queues q where q.id = in_queue;
    perform requeue.wake(in_queue);
end $$;
