
-- Ends an upgrade. A role that could execute a function can also execute its replacements. A role that can read the
-- keys can also read the new tables, because claims need them.
do $$
declare
    kept record;
begin
    for kept in
        select distinct p.oid::regprocedure::text as function,
            case when k.grantee = 0 then 'public' else k.grantee::regrole::text end as role
        from requeue.kept_grants k
        join pg_catalog.pg_proc p on p.proname = k.name and p.pronamespace = 'requeue'::regnamespace
    loop
        execute 'grant execute on function ' || kept.function || ' to ' || kept.role;
    end loop;
    for kept in
        select c.oid::regclass::text as new,
            case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as role
        from pg_catalog.pg_class k, lateral pg_catalog.aclexplode(k.relacl) a, pg_catalog.pg_class c
        where k.oid = 'requeue.keys'::regclass and a.privilege_type = 'SELECT'
            and c.relnamespace = k.relnamespace and c.relkind = 'r'
            and c.oid not in (select t.oid from requeue.kept_tables t)
    loop
        execute 'grant select on ' || kept.new || ' to ' || kept.role;
    end loop;
end $$;
drop table requeue.kept_grants, requeue.kept_tables;
