-- Upgrades the schema from version 2 to version 3. The column is the same in `schema.sql`.
alter table queues add column paused integer not null default 0 check (paused in (0, 1));
