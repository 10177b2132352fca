-- Upgrades the schema from version 1 to version 2. Both columns are the same in `schema.sql`.
alter table keys add column bound integer check ({bound});
alter table keys add column cancel_epoch integer check ({cancel_epoch});
