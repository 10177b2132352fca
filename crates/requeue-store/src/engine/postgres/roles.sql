-- Run these statements as the role that migrates. Grants remain when a later version upgrades the schema. Repeat the
-- grants for new functions.
create role worker login;
grant usage on schema requeue to worker;
grant select on all tables in schema requeue to worker;
grant execute on all functions in schema requeue to worker;
-- Without this statement, a worker can also drop queues.
revoke execute on function requeue.drop_queue from worker;

-- This role may add keys to existing queues, with SQL, the library or `requeue add`. It has no other privilege.
create role producer login;
grant usage on schema requeue to producer;
grant select on requeue.version to producer;
grant execute on function
    requeue.find,
    requeue.add(text, text, interval, text, text, integer, boolean, interval, interval, text),
    requeue.add(text, bytea, interval, text, text, integer, boolean, interval, interval, text),
    requeue.add_many(text, text[], interval, text, text, integer, boolean, interval, interval, text),
    requeue.add_many(text, bytea[], interval, text, text, integer, boolean, interval, interval, text),
    requeue.add_each, requeue.add_all_soon, requeue.add_free, requeue.record_activity
to producer;
