-- Upgrades the tables from version 1 to version 2, and drops the functions whose parameters change. The
-- functions are created afterwards.
alter table requeue.keys add column bound bigint, add column cancel_epoch bigint;
-- (`not valid`: new rows are checked. Checking the existing ones would block all others for long.)
alter table requeue.keys drop constraint readable, add constraint readable check (
    state = 3 or requeue.damage(
        state, priority, at, since, until, not_before, adds, reasons, failures, steps, epoch, lease_until,
        run_since, run_priority, run_adds, run_reasons, worker, bound, cancel_epoch
    ) is null) not valid;
drop function requeue.is_readable, requeue.damage_of;
drop function requeue.damage(
    smallint, smallint, bigint, bigint, bigint, bigint, integer, integer, integer, integer, bigint, bigint,
    bigint, smallint, integer, integer, text);
drop function requeue.renew, requeue.add_all, requeue.add_all_soon, requeue.add_free, requeue.add_each;
drop function
    requeue.add(text, bytea, interval, text, text, integer, boolean),
    requeue.add(text, text, interval, text, text, integer, boolean),
    requeue.add_many(text, bytea[], interval, text, text, integer, boolean),
    requeue.add_many(text, text[], interval, text, text, integer, boolean);

