-- As whoever migrates. What later versions bring is granted by the same again.
create role worker login;
grant usage on schema requeue to worker;
grant select on all tables in schema requeue to worker;
grant execute on all functions in schema requeue to worker;

-- Who only adds may do that, and neither see nor take what is there.
create role producer login;
grant usage on schema requeue to producer;
grant execute on function
    requeue.add(text, text, interval, text, text, integer, boolean),
    requeue.add(text, bytea, interval, text, text, integer, boolean),
    requeue.add_many(text, text[])
to producer;
