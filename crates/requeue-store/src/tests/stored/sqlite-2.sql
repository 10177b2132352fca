pragma application_id = 1920038245; pragma user_version = 2;
PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE clock (
    id integer primary key,
    start text not null,
    began integer not null,
    latest integer not null
) strict;
INSERT INTO "clock" VALUES(1,'7e4aa3bc-3c3c-499d-883e-028e05fd9bc6',1795415704633983,1795428413820496);
CREATE TABLE epochs (last integer not null) strict;
INSERT INTO "epochs" VALUES(1795428411813810);
CREATE TABLE keys (
    queue integer not null,
    key blob not null,
    -- 0: ready or waiting; 1: in flight; 2: parked; 3: set aside, with the damage in `error`.
    state integer not null,
    -- The due time of the pending run.
    at integer,
    -- For a key in flight: its delivery, and the parameters of its run.
    epoch integer,
    lease_until integer,
    run_since integer,
    run_priority integer,
    run_adds integer,
    run_reasons integer,
    priority integer not null,
    adds integer not null,
    reasons integer not null,
    failures integer not null,
    steps integer not null,
    until integer not null,
    not_before integer not null,
    since integer not null,
    error text,
    -- For a key in flight: the name of its worker.
    worker text, bound integer check (bound is null or typeof(bound) = 'integer' and bound >= 0), cancel_epoch integer check (cancel_epoch is null or typeof(cancel_epoch) = 'integer' and cancel_epoch > 0),
    -- Other programs may write rows without this check: see `damage.rs`, which has the same rules.
    constraint readable check (state = 3 or coalesce(
    typeof(key) = 'blob'
    and typeof(state) = 'integer' and typeof(priority) = 'integer' and typeof(adds) = 'integer'
    and typeof(reasons) = 'integer' and typeof(failures) = 'integer' and typeof(steps) = 'integer'
    and typeof(until) = 'integer' and typeof(not_before) = 'integer' and typeof(since) = 'integer'
    and typeof(at) in ('integer', 'null') and typeof(epoch) in ('integer', 'null')
    and typeof(lease_until) in ('integer', 'null') and typeof(run_since) in ('integer', 'null')
    and typeof(run_priority) in ('integer', 'null') and typeof(run_adds) in ('integer', 'null')
    and typeof(run_reasons) in ('integer', 'null')
    and priority between -1 and 1 and since >= 0 and until >= 0 and not_before >= 0
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
),
    primary key (queue, key)
) strict, without rowid;
INSERT INTO "keys" VALUES(1,X'6261636B696E672D6F6666',0,3138122498319590,NULL,NULL,NULL,NULL,NULL,NULL,0,1,0,1,1,3138122498319590,3138122498319590,3138122498319590,'exit status: 3',NULL,NULL,NULL);
INSERT INTO "keys" VALUES(1,X'64616D61676564',3,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,0,0,0,1795428413835610,'priority is 9; the row was state=0',NULL,NULL,NULL);
INSERT INTO "keys" VALUES(1,X'6469727479',1,1795428409454784,1795428407453711,4949028000000000,1795428407453711,0,1,0,0,1,0,0,0,0,0,1795428409454784,NULL,'vm:17804',NULL,NULL);
INSERT INTO "keys" VALUES(1,X'696E2D666C69676874',1,NULL,1795428404435431,4949028000000000,1795428404435432,0,1,0,0,0,0,0,0,0,0,1795428404417029,NULL,'vm:17787',NULL,NULL);
INSERT INTO "keys" VALUES(1,X'6C6F77',0,1795428413835991,NULL,NULL,NULL,NULL,NULL,NULL,-1,1,0,0,0,0,0,1795428413835991,NULL,NULL,NULL,NULL);
INSERT INTO "keys" VALUES(1,X'7061726B6564',2,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,1,0,1,1,1795428410696784,0,1795428409794671,'exit status: 3',NULL,NULL,NULL);
INSERT INTO "keys" VALUES(1,X'7265616479',0,1795428413835610,NULL,NULL,NULL,NULL,NULL,NULL,0,2,0,0,0,0,0,1795428413835610,NULL,NULL,NULL,NULL);
INSERT INTO "keys" VALUES(1,X'77616974696E67',0,4949028413820496,NULL,NULL,NULL,NULL,NULL,NULL,1,1,0,0,0,0,0,4949028413820496,NULL,NULL,NULL,NULL);
INSERT INTO "keys" VALUES(9,X'6F74686572',0,1795428413865532,NULL,NULL,NULL,NULL,NULL,NULL,0,1,0,0,0,0,0,1795428413865532,NULL,NULL,NULL,NULL);
CREATE TABLE queues (
    -- Never reused after a drop of the queue: a process may still have the queue open.
    id integer primary key autoincrement,
    name text not null unique,
    -- 0: an add replaces a delayed run; 1: in addition, nothing runs before a backoff is over.
    re_add integer not null check (re_add in (0, 1)),
    -- The effect of an add on a parked key: 0 revives it, 1 keeps it parked.
    parked_add integer not null check (parked_add in (0, 1))
) strict;
INSERT INTO "queues" VALUES(1,'mail',1,0);
INSERT INTO "queues" VALUES(9,'tasks',0,1);
CREATE INDEX keys_ready on keys (queue, priority, at) where state = 0;
CREATE INDEX keys_leases on keys (queue, lease_until) where state = 1;
CREATE INDEX keys_parked on keys (queue, key) where state = 2;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('queues',9);
COMMIT;
