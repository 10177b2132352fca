-- Upgrades the tables from version 2 to version 3, and drops the function whose parameters change.
drop function requeue.revive;
alter table requeue.queues add column paused boolean not null default false;
-- (`not valid`: see `to_2.sql`.)
alter table requeue.keys drop constraint readable, add constraint readable check (
    state = 3 or octet_length(key) <= 2048 and requeue.damage(
        state, priority, at, since, until, not_before, adds, reasons, failures, steps, epoch, lease_until,
        run_since, run_priority, run_adds, run_reasons, worker, bound, cancel_epoch
    ) is null) not valid;
