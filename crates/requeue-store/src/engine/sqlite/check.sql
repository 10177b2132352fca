coalesce(
    typeof(key) = 'blob' and length(key) <= 2048
    and typeof(state) = 'integer' and typeof(priority) = 'integer' and typeof(adds) = 'integer'
    and typeof(reasons) = 'integer' and typeof(failures) = 'integer' and typeof(steps) = 'integer'
    and typeof(until) = 'integer' and typeof(not_before) = 'integer' and typeof(since) = 'integer'
    and typeof(at) in ('integer', 'null') and typeof(epoch) in ('integer', 'null')
    and typeof(lease_until) in ('integer', 'null') and typeof(run_since) in ('integer', 'null')
    and typeof(run_priority) in ('integer', 'null') and typeof(run_adds) in ('integer', 'null')
    and typeof(run_reasons) in ('integer', 'null') and typeof(bound) in ('integer', 'null')
    and typeof(cancel_epoch) in ('integer', 'null')
    and priority between -1 and 1 and since >= 0 and until >= 0 and not_before >= 0
    and coalesce(bound, 0) >= 0 and coalesce(cancel_epoch, 1) > 0
    and adds between 0 and 4294967295 and reasons between 0 and 4294967295
    and failures between 0 and 4294967295 and steps between 0 and 4294967295
    and case state
        when 0 then at >= 0 and epoch is null
        when 1 then coalesce(at, 0) >= 0 and epoch > 0 and lease_until >= 0 and run_since >= 0
            and run_priority between -1 and 1 and run_adds between 0 and 4294967295
            and run_reasons between 0 and 4294967295
            and (worker is null
                or typeof(worker) = 'text' and length(cast(worker as blob)) <= 100)
        when 2 then at is null and epoch is null
    end, 0)
