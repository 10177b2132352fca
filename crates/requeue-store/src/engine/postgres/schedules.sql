-- Stores schedules. A process computes the next time of each schedule, because PostgreSQL cannot evaluate cron
-- expressions. See `client/schedules.rs`.

-- Stores the schedule of a key, and wakes the waiting processes. If the key already has a schedule with the same texts,
-- its times remain.
create or replace function requeue.put_schedule(
    in_queue integer, in_key bytea, in_spec text, in_zone text, in_priority smallint, in_group text,
    out next_at bigint, out is_new boolean, out paused boolean, out error text
)
language plpgsql {definer} set lock_timeout = '5s' as $$
#variable_conflict use_column
begin
    perform requeue.checked(in_key);
    perform requeue.keep_queue(in_queue);
    perform requeue.check_queue(in_queue);
    insert into requeue.schedules as s (queue, key, spec, zone, priority, grp, next_at, is_new)
    values (in_queue, in_key, in_spec, in_zone, in_priority, in_group, requeue.now(), true)
    on conflict (queue, key) do update set
        (spec, zone, priority, grp, next_at, is_new, error) = (
            select excluded.spec, excluded.zone, excluded.priority, excluded.grp,
                case when o.is_same then s.next_at else excluded.next_at end,
                case when o.is_same then s.is_new else true end,
                case when o.is_same then s.error end
            from (select s.spec = excluded.spec and s.zone = excluded.zone as is_same) o
        )
    returning s.next_at, s.is_new, s.paused, s.error
    into put_schedule.next_at, put_schedule.is_new, put_schedule.paused, put_schedule.error;
    perform requeue.wake(in_queue);
end $$;

-- Removes the schedule of a key. Returns false if the key has no schedule.
create or replace function requeue.remove_schedule(in_queue integer, in_key bytea) returns boolean
language plpgsql {definer} set lock_timeout = '5s' as $$
begin
    delete from requeue.schedules s where s.queue = in_queue and s.key = in_key;
    if found then
        return true;
    end if;
    perform requeue.check_queue(in_queue);
    return false;
end $$;

-- Pauses or resumes the schedule of a key, and wakes the waiting processes. A process then computes the next time of a
-- resumed schedule. Returns false if the key has no schedule.
create or replace function requeue.set_schedule_paused(in_queue integer, in_key bytea, in_paused boolean)
returns boolean
language plpgsql {definer} set lock_timeout = '5s' as $$
begin
    update requeue.schedules s set paused = in_paused,
        is_new = s.is_new or not in_paused and s.due_at is null,
        error = case when in_paused then s.error end
    where s.queue = in_queue and s.key = in_key;
    if not found then
        perform requeue.check_queue(in_queue);
        return false;
    end if;
    perform requeue.wake(in_queue);
    return true;
end $$;

-- Sets the next time of a schedule, or the reason why it has no next time. Adds the key, unless the schedule is new.
-- The arguments `was_spec` to `was_new` are the values with which the process has read the schedule. Returns false, and
-- changes nothing, if another process has changed the schedule since then.
--
-- The update locks the schedule until the key is added. Therefore, only one of several processes adds the key.
create or replace function requeue.fire_schedule(
    in_queue integer, in_key bytea, was_spec text, was_zone text, was_next_at bigint, was_new boolean,
    in_next_at bigint, in_error text
) returns boolean
language plpgsql {definer} set lock_timeout = '100ms' as $$
declare
    fired requeue.schedules;
begin
    perform requeue.keep_queue(in_queue);
    update requeue.schedules s set next_at = coalesce(in_next_at, s.next_at),
        is_new = s.is_new and in_next_at is null, error = in_error
    where s.queue = in_queue and s.key = in_key and s.spec = was_spec and s.zone = was_zone
        and s.next_at = was_next_at and s.is_new = was_new and s.due_at is not null
    returning * into fired;
    if fired.key is null then
        perform requeue.check_queue(in_queue);
        return false;
    end if;
    if in_next_at is not null and not was_new then
        perform requeue.add_all(in_queue, array[in_key], '{0}', '{0}', array[fired.priority], '{0}', '{1}', '{}',
            case when fired.grp is not null then array[fired.grp] else '{}' end);
    end if;
    return true;
end $$;
