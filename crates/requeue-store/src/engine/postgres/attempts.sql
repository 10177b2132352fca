-- The failed runs of keys: see `engine/attempts.rs`.
--
-- A key whose `failed_at` is null has no rows in `attempts`, so keys that never fail cost nothing. An add or a revival
-- that resets the failures of a key does not remove its rows, but reads ignore them. The rows are removed with the key,
-- and later failures replace them.

-- Stores the failure of a key after a completion, or removes the rows of a key that no longer has failures. `was` is
-- the row of the key before the completion, and `k` is the row after it. If `in_took` is null, the duration of the run
-- is the time since its claim.
create or replace function requeue.keep_attempt(
    was requeue.keys, k requeue.keys, t bigint, in_error text, in_took bigint, in_status integer, in_output text
) returns void
language plpgsql as $$
begin
    if k.failures > was.failures then
        insert into requeue.attempts as a
            (queue, key, slot, number, at, took, worker, exit_status, error, output)
        values (k.queue, k.key, k.failures % 3, k.failures, t, coalesce(in_took, greatest(t - was.run_since, 0)),
            was.worker, in_status, coalesce(in_error, ''), coalesce(in_output, ''))
        on conflict (queue, key, slot) do update set
            (number, at, took, worker, exit_status, error, output) = (
                excluded.number, excluded.at, excluded.took, excluded.worker, excluded.exit_status,
                excluded.error, excluded.output
            );
    elsif was.failed_at is not null and (k.failures = 0 or k.state = 0 and k.at is null) then
        delete from requeue.attempts a where a.queue = k.queue and a.key = k.key;
    end if;
end $$;

-- Removes the oldest failures of a queue if it has too many. The function skips locked rows, because completions lock
-- rows in another order.
create or replace function requeue.trim_attempts(in_queue integer) returns void
language plpgsql as $$
declare
    until_at bigint := (
        select a.at from requeue.attempts a where a.queue = in_queue order by a.at desc offset 10000 limit 1
    );
begin
    delete from requeue.attempts x where x.ctid = any (array(
        select a.ctid from requeue.attempts a where a.queue = in_queue and a.at <= until_at
        order by a.at limit 1024 for update skip locked
    ));
end $$;
