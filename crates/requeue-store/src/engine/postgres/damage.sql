
-- Names the first invalid value of a row, or returns null. No operation writes an invalid row, and the
-- table rejects it unless its constraint was dropped. A claim sets such rows aside. `damage.rs` has the
-- same rules. (Times are from 1970 on, so that the difference between two times never overflows. The text
-- is built only from immutable parts: otherwise each use would repeat the whole expression.)
create or replace function requeue.damage(
    state smallint, priority smallint, at bigint, since bigint, until bigint, not_before bigint,
    adds integer, reasons integer, failures integer, steps integer, epoch bigint,
    lease_until bigint, run_since bigint, run_priority smallint, run_adds integer,
    run_reasons integer, worker text, bound bigint, cancel_epoch bigint
) returns text language sql immutable
    return case
        when (state between 0 and 2) is not true then 'state is ' || coalesce(state::text, 'null')
        when (priority between -1 and 1) is not true then 'priority is ' || coalesce(priority::text, 'null')
        when (at >= 0 and state <> 2 or at is null and state <> 0) is not true then 'at is ' || coalesce(at::text, 'null')
        when (since >= 0) is not true then 'since is ' || coalesce(since::text, 'null')
        when (until >= 0) is not true then 'until is ' || coalesce(until::text, 'null')
        when (not_before >= 0) is not true then 'not_before is ' || coalesce(not_before::text, 'null')
        when (adds >= 0) is not true then 'adds is ' || coalesce(adds::text, 'null')
        when (reasons is not null) is not true then 'reasons is ' || coalesce(reasons::text, 'null')
        when (failures >= 0) is not true then 'failures is ' || coalesce(failures::text, 'null')
        when (steps >= 0) is not true then 'steps is ' || coalesce(steps::text, 'null')
        when bound < 0 then 'bound is ' || bound::text
        when cancel_epoch <= 0 then 'cancel_epoch is ' || cancel_epoch::text
        when state <> 1 then case when epoch is not null then 'epoch is ' || epoch::text end
        when (epoch > 0) is not true then 'epoch is ' || coalesce(epoch::text, 'null')
        when (lease_until >= 0) is not true then 'lease_until is ' || coalesce(lease_until::text, 'null')
        when (run_since >= 0) is not true then 'run_since is ' || coalesce(run_since::text, 'null')
        when (run_priority between -1 and 1) is not true then 'run_priority is ' || coalesce(run_priority::text, 'null')
        when (run_adds >= 0) is not true then 'run_adds is ' || coalesce(run_adds::text, 'null')
        when (run_reasons is not null) is not true then 'run_reasons is ' || coalesce(run_reasons::text, 'null')
        when octet_length(worker) > 100 or worker ~ '[\u0001-\u001f\u007f-\u009f]' then 'worker is not valid'
    end;

