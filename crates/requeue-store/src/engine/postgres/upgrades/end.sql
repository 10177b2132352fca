
-- Ends an upgrade: a role that could execute a function can also execute the functions that replace it.
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
end $$;
drop table requeue.kept_grants;
