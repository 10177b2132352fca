-- Begins an upgrade. A superuser may run it. But the new functions must belong to the owner of the schema, because they
-- run with the rights of their owner.
select pg_catalog.set_config('role', pg_catalog.pg_get_userbyid(n.nspowner), true)
from pg_catalog.pg_namespace n where n.nspname = 'requeue';

-- Waits until no other transaction uses the keys. Therefore, all other transactions see the functions and the tables
-- change at the same time.
lock table requeue.keys in access exclusive mode;

-- The upgrade drops all functions and creates them again. A dropped function loses its grants, so they are stored: see
-- `end.sql`.
create table requeue.kept_grants as
    select p.proname as name, a.grantee
    from pg_catalog.pg_proc p, lateral pg_catalog.aclexplode(p.proacl) a
    where p.pronamespace = 'requeue'::regnamespace and a.grantee <> p.proowner;
-- The existing tables. A role that can read the keys also receives the right to read the tables that the upgrade
-- creates: see `end.sql`.
create table requeue.kept_tables as
    select c.oid from pg_catalog.pg_class c where c.relnamespace = 'requeue'::regnamespace and c.relkind = 'r';

-- All functions are dropped, because a function whose parameters change cannot be replaced. One statement drops all of
-- them, because they depend on each other.
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
