-- Adds each inserted, updated or deleted order to the queue `orders` when the change is committed.
create function orders_changed() returns trigger language plpgsql as $$
begin
    perform requeue.add_many('orders', array(select id::text from changed));
    return null;
end $$;

create trigger orders_new after insert on orders
    referencing new table as changed for each statement execute function orders_changed();
create trigger orders_changed after update on orders
    referencing new table as changed for each statement execute function orders_changed();
create trigger orders_gone after delete on orders
    referencing old table as changed for each statement execute function orders_changed();
