-- Records an action of an operator. The table keeps the last 100 actions of each queue.
create or replace function requeue.record_action(
    in_queue integer, in_action text, in_who text, in_target text, in_note text
) returns void
language plpgsql {definer} set lock_timeout = '5s' as $$
begin
    perform requeue.keep_queue(in_queue);
    perform requeue.check_queue(in_queue);
    insert into requeue.actions (queue, at, action, who, target, note)
    values (in_queue, requeue.now(), in_action, in_who, in_target, in_note);
    delete from requeue.actions a where a.queue = in_queue and a.number <= (
        select k.number from requeue.actions k where k.queue = in_queue order by k.number desc offset 100 limit 1
    );
end $$;
