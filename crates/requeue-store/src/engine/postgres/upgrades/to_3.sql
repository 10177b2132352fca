-- Upgrades the tables from version 2 to version 3.
alter table requeue.queues add column paused boolean not null default false;
