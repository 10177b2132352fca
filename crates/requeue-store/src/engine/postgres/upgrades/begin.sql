-- Begins an upgrade. A superuser may run the upgrade, but new functions must belong to the owner of the schema, because
-- they run with the rights of their owner.
select pg_catalog.set_config('role', pg_catalog.pg_get_userbyid(n.nspowner), true)
from pg_catalog.pg_namespace n where n.nspname = 'requeue';

-- Waits until no other transaction uses the keys, so that all other transactions see the functions
-- and the tables change at the same time.
lock table requeue.keys in access exclusive mode;

-- The upgrade drops and creates all functions. A dropped function loses its grants: see `end.sql`.
create table requeue.kept_grants as
    select p.proname as name, a.grantee
    from pg_catalog.pg_proc p, lateral pg_catalog.aclexplode(p.proacl) a
    where p.pronamespace = 'requeue'::regnamespace and a.grantee <> p.proowner;
-- The roles that can read the keys. They can also read the tables that the upgrade creates: see `end.sql`.
create table requeue.kept_tables as
    select c.oid from pg_catalog.pg_class c where c.relnamespace = 'requeue'::regnamespace and c.relkind = 'r';

-- A function whose parameters change cannot be replaced, so all functions are dropped. One statement drops them,
-- because they depend on each other.
do $$
declare
    needed text;
begin
    execute (
        select 'drop function ' || string_agg(p.oid::regprocedure::text, ', ')
        from pg_catalog.pg_proc p where p.pronamespace = 'requeue'::regnamespace
    );
exception when dependent_objects_still_exist then
    get stacked diagnostics needed = pg_exception_detail;
    raise exception 'the upgrade replaces the functions of the schema requeue, and other objects need them: %',
        replace(coalesce(nullif(needed, ''), sqlerrm), e'\n', '; ')
        using errcode = 'dependent_objects_still_exist',
            hint = 'Drop these objects, upgrade the schema, and create the objects again.';
end $$;
