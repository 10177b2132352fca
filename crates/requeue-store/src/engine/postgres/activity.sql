-- The activity of a queue in each minute: see `engine/activity.rs`. The merge of rows is computed in Rust, because only
-- Rust code decodes the histograms.

-- Writes the row of a process for a minute, and thereby replaces the earlier row. Writes nothing if the minute is over.
create or replace function requeue.record_activity(
    in_queue integer, in_minute bigint, in_instance text, in_worker text, in_counts bigint[], in_times bytea,
    out current_minute bigint, out is_written boolean, out has_old boolean
)
language plpgsql {definer} set lock_timeout = '5s' as $$
declare
    t bigint := requeue.now();
    wanted bigint;
begin
    current_minute := t / 60000000;
    wanted := coalesce(in_minute, current_minute);
    is_written := abs(wanted - current_minute) <= 1;
    if is_written then
        perform requeue.keep_queue(in_queue);
        perform requeue.check_queue(in_queue);
        -- The commit does not wait for the disk, so a crash of the server may lose the last numbers.
        perform set_config('synchronous_commit', 'off', true);
        insert into requeue.activity as a values (
            in_queue, wanted, in_instance, in_worker, t, in_counts[1], in_counts[2], in_counts[3], in_counts[4],
            in_counts[5], in_counts[6], in_times
        )
        on conflict (queue, minute, instance) do update set
            (worker, at, adds, coalesced, starts, successes, failures, given_up, times) = (
                excluded.worker, greatest(excluded.at, a.at + 1), excluded.adds, excluded.coalesced, excluded.starts,
                excluded.successes, excluded.failures, excluded.given_up, excluded.times
            );
    end if;
    has_old := exists (
        select from requeue.activity a
        where a.queue = in_queue and a.minute < current_minute - 2 and a.instance <> ''
    );
end $$;

-- Removes rows that are older than seven days.
create or replace function requeue.trim_activity(in_queue integer, t bigint) returns void language sql as $$
    delete from requeue.activity a where a.queue = in_queue and a.minute < t / 60000000 - 7 * 24 * 60
$$;

-- Replaces rows of a minute with a merged row. The arguments name the rows and the times of their last writes. If
-- `in_times` is null, no row remains. Returns false if one of the rows was written after the read, is being written, or
-- was merged by another process. Also removes rows that are older than seven days.
create or replace function requeue.merge_activity(
    in_queue integer, in_minute bigint, in_instances text[], in_ats bigint[], in_counts bigint[], in_times bytea
) returns boolean
language plpgsql {definer} set lock_timeout = '5s' as $$
declare
    t bigint := requeue.now();
    locked bigint;
begin
    perform requeue.keep_queue(in_queue);
    perform requeue.check_queue(in_queue);
    select count(*) into locked from (
        select from requeue.activity a
        join unnest(in_instances, in_ats) as p (instance, at) on a.instance = p.instance and a.at = p.at
        where a.queue = in_queue and a.minute = in_minute
        for update of a skip locked
    ) x;
    if locked <> cardinality(in_instances) or '' <> all (in_instances) and exists (
        select from requeue.activity a where a.queue = in_queue and a.minute = in_minute and a.instance = ''
    ) then
        return false;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    delete from requeue.activity a
    where a.queue = in_queue and a.minute = in_minute and a.instance = any (in_instances);
    if in_times is not null then
        insert into requeue.activity values (
            in_queue, in_minute, '', '', greatest(t, (select max(p.at) + 1 from unnest(in_ats) as p (at))),
            in_counts[1], in_counts[2], in_counts[3], in_counts[4], in_counts[5], in_counts[6], in_times
        );
    end if;
    perform requeue.trim_activity(in_queue, t);
    return true;
end $$;
