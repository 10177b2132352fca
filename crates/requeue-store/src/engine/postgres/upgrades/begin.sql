-- Begins an upgrade. New functions must belong to the owner of the schema: they run with the rights of their
-- owner, and a superuser may run the upgrade.
select pg_catalog.set_config('role', pg_catalog.pg_get_userbyid(n.nspowner), true)
from pg_catalog.pg_namespace n where n.nspname = 'requeue';

-- Waits until no other transaction uses the keys, so that the functions and the
-- tables change at the same time for all others.
lock table requeue.keys in access exclusive mode;

-- The upgrade replaces all functions. A function that is dropped loses its grants: see `end.sql`.
create table requeue.kept_grants as
    select p.proname as name, a.grantee
    from pg_catalog.pg_proc p, lateral pg_catalog.aclexplode(p.proacl) a
    where p.pronamespace = 'requeue'::regnamespace and a.grantee <> p.proowner;

-- A function whose parameters change cannot be replaced. Several passes, because functions may need each other. One that
-- an object of the user needs stays.
do $$
declare
    old record;
    dropped integer;
begin
    loop
        dropped := 0;
        for old in select p.oid::regprocedure::text as function
            from pg_catalog.pg_proc p where p.pronamespace = 'requeue'::regnamespace
        loop
            begin
                execute 'drop function ' || old.function;
                dropped := dropped + 1;
            exception when dependent_objects_still_exist then null;
            end;
        end loop;
        exit when dropped = 0;
    end loop;
end $$;

