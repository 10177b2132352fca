-- Upgrades the tables from version 2 to version 3, and drops the function whose parameters change.
drop function requeue.revive;
alter table requeue.queues add column paused boolean not null default false;
