-- Without this lock, two programs that start at the same time would replace one function, and one of them would fail.
select pg_advisory_xact_lock(hashtext('articles'));

-- The table, and the triggers that add the id of each changed article to the queue, in the transaction of the change.
create table if not exists articles (
    id bigint generated always as identity primary key,
    title text not null,
    body text not null
);

create or replace function articles_changed() returns trigger language plpgsql as $$
declare
    ids text[] := array(select id::text from changed);
begin
    -- An update can change the id. Then the old id must leave the index.
    if tg_op = 'UPDATE' then
        ids := array(select unnest(ids) union select id::text from previous);
    end if;
    -- Quick updates are one run, 200 ms after the last of them, and at most 2 s after the first.
    perform requeue.add_many('articles', ids, debounce => '200 ms', at_most => '2 s');
    return null;
end $$;

create or replace trigger articles_inserted after insert on articles
    referencing new table as changed for each statement execute function articles_changed();
create or replace trigger articles_updated after update on articles
    referencing old table as previous new table as changed
    for each statement execute function articles_changed();
create or replace trigger articles_deleted after delete on articles
    referencing old table as changed for each statement execute function articles_changed();
