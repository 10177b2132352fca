//! Tests adds in SQL, in transactions of the caller, and by triggers.

use requeue::Completion;

use super::changing::other;
use super::*;
use crate::api::store::Store;
use crate::tests::get;
use crate::types::error::ErrorKind;

/// Returns the ready keys, sorted by key.
async fn ready(queue: &crate::Queue) -> Vec<String> {
    let page = queue.snapshot(State::Ready, None, 100).await.expect("the page is read");
    page.iter().map(|entry| entry.key.to_string()).collect()
}

pub(super) async fn store(url: &str) -> Store {
    let store = Store::connect(url).await.expect("the store connects");
    store.migrate().await.expect("the schema is created");
    store
}

#[tokio::test]
async fn anybody_adds_by_sql() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let store = store(&url).await;
    let sql = |sql: &str| server.psql(name(&url), sql);
    assert_eq!(sql("select holds from requeue.open('q')"), "t");
    let error = store.queue("r").must_exist().open().await.expect_err("the queue does not exist");
    assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
    store.queue("mail").open().await.expect("the queue opens");
    let error = store.queue("mial").must_exist().open().await.expect_err("the name is misspelled");
    assert_eq!(error.to_string(), "no such queue: \"mial\" (did you mean \"mail\"?)");
    let queue = store.queue("q").must_exist().open().await.expect("the queue exists");
    assert_eq!(queue.shared.place.readd_policy, ReaddPolicy::Hold);
    assert_eq!(sql("select requeue.add('q', 'a'), requeue.add('q', 'a')"), "new|coalesced");
    assert_eq!(sql("select requeue.add('q', '\\xff00'::bytea)"), "new");
    assert_eq!(sql("select requeue.add('q', 'later', '1 hour')"), "new");
    let all = "select requeue.add('q', 'all', after => '1 min', merge => 'exactly', \
               priority => 'high', flags => 5, revive => true)";
    assert_eq!(sql(all), "new");
    assert_eq!(sql("select requeue.add_many('q', array['b', 'a', 'b', 'ü'])"), "(2,1,0,0,0,0)");
    assert_eq!(ready(&queue).await, ["a", "b", "ü", "\\xff\\0"]);
    let all = queue.look_up("all").await.expect("looked up").expect("the key exists");
    assert_eq!((all.priority, all.flags), (crate::Priority::High, 5));
    assert!(all.due.is_some_and(|due| due > Duration::from_secs(30)));

    let item = queue.get().await.expect("the queue is not shut down");
    assert_eq!(sql("select requeue.add('q', 'a')"), "dirty");
    item.give_up("no").await.expect("the lease is valid");
    let item = queue.get_many(9).await.into_iter().find(|item| item.as_str() == Some("a"));
    item.expect("the key was added during its run")
        .give_up("no")
        .await
        .expect("the lease is valid");
    assert_eq!(sql("select requeue.add('q', 'a'), requeue.add('q', 'a')"), "revived|coalesced");
    let entry = queue.look_up("a").await.expect("looked up").expect("the key exists");
    assert_eq!((entry.state, entry.failures), (State::Ready, 0));
    let item = queue.get_many(9).await.into_iter().find(|item| item.as_str() == Some("a"));
    item.expect("the key is ready").give_up("no").await.expect("the lease is valid");
    assert_eq!(sql("select requeue.add('q', 'a', '1 hour')"), "revived");
    let entry = queue.look_up("a").await.expect("looked up").expect("the key exists");
    assert_eq!(entry.state, State::Waiting);

    // In this queue, adds leave parked keys parked.
    assert_eq!(
        sql("select holds, revives from requeue.open('keeps', false, revive => false)"),
        "f|f"
    );
    assert_eq!(sql("select holds, revives from requeue.open('keeps')"), "f|f");
    let queue = store.queue("keeps").open().await.expect("the queue opens");
    assert_eq!(queue.shared.place.parked_add, ParkedAdd::Keep);
    let error = store.queue("keeps").parked_add(ParkedAdd::Revive).open().await;
    let error = error.expect_err("the queue keeps parked keys").to_string();
    assert_eq!(
        error,
        "queue \"keeps\": its adds keep parked keys, and the option says revive; omit \
         the option, or use another queue"
    );
    queue.add("a").await.expect("added");
    get(&queue).await.give_up("no").await.expect("the lease is valid");
    assert_eq!(sql("select requeue.add('keeps', 'a')"), "parked");
    assert_eq!(sql("select requeue.add('keeps', 'a', revive => true)"), "revived");
}

#[tokio::test]
async fn what_sql_can_not_mean_is_refused() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    store(&url).await.queue("q").open().await.expect("the queue opens");
    let engine = Postgres::new(Address::parse(&url).expect("the address is valid"), WHOLE)
        .expect("the engine is created");
    let cases = [
        ("requeue.add('r', 'a')", "no such queue: 'r'"),
        ("requeue.add(null, 'a')", "no such queue: NULL"),
        ("requeue.add('q', null::text)", "the key is null"),
        ("requeue.add('q', repeat('a', 2049))", "the key has 2049 bytes; at most 2048 are allowed"),
        ("requeue.add_many('q', array['a', null])", "the key is null"),
        (
            "requeue.add('q', 'a', merge => 'x')",
            "invalid merge 'x': use earliest, latest or exactly",
        ),
        (
            "requeue.add('q', 'a', priority => null)",
            "invalid priority NULL: use low, normal or high",
        ),
    ];
    for (call, said) in cases {
        let fault =
            engine.sessions.query_row(&format!("select {call}"), &[]).await.expect_err(call);
        assert_eq!(fault.kind, crate::types::error::Kind::Refused, "{call}");
        assert!(fault.source.to_string().starts_with(said), "{call}: {}", fault.source);
    }
}

#[tokio::test]
async fn a_trigger_feeds_a_queue() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let queue = store(&url).await.queue("orders").open().await.expect("the queue opens");
    let sql = |sql: &str| server.psql(name(&url), sql);
    sql("create table orders (id integer primary key, what text)");
    sql(include_str!("../trigger.sql"));

    // A worker waits before the first key is added.
    let getting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get().await }
    });
    sql("begin; insert into orders values (1, 'tea'), (2, 'jam'); rollback");
    assert_eq!(queue.counts().await.expect("counted"), StateCounts::default());
    sql("insert into orders values (3, 'tea')");
    let item = getting.await.expect("the task does not panic").expect("the queue is not shut down");
    assert_eq!(item.as_str(), Some("3"));
    sql("insert into orders select n, 'jam' from generate_series(4, 6) n");
    sql("update orders set what = 'bun' where id = 3");
    sql("delete from orders where id = 4");
    assert_eq!(ready(&queue).await, ["4", "5", "6"]);
    item.succeed().await.expect("the lease is valid");
    assert_eq!(ready(&queue).await, ["3", "4", "5", "6"]);
}

/// Formats a row that `requeue.add_many` returns.
fn counts(new: u8, coalesced: u8, dirty: u8, held: u8, revived: u8, parked: u8) -> String {
    format!("{new}|{coalesced}|{dirty}|{held}|{revived}|{parked}")
}

#[tokio::test]
async fn many_are_added_with_all_that_one_is_and_each_answer_is_counted() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let store = store(&url).await;
    let queue = store.queue("q").readd_policy(ReaddPolicy::Hold).parked_add(ParkedAdd::Keep);
    let queue = queue.open().await.expect("the queue opens");
    let many = |args: &str| {
        server.psql(name(&url), &format!("select * from requeue.add_many('q', {args})"))
    };
    assert_eq!(many("'{}'::text[]"), counts(0, 0, 0, 0, 0, 0));
    assert_eq!(many("null::bytea[]"), counts(0, 0, 0, 0, 0, 0));
    let all = "'1 hour', merge => 'latest', priority => 'high', flags => 6";
    assert_eq!(many(&format!("array['a', 'b'], {all}")), counts(2, 0, 0, 0, 0, 0));
    // `latest` keeps the later due time, and the default keeps the earlier one.
    assert_eq!(many("array['a'], '2 hours', 'latest'"), counts(0, 1, 0, 0, 0, 0));
    assert_eq!(many("array['b'], '30 min', flags => 1"), counts(0, 1, 0, 0, 0, 0));
    assert_eq!(many(r"array['\xff00', '\x62']::bytea[], '30 min'"), counts(1, 1, 0, 0, 0, 0));
    let minutes = async |key: &[u8]| {
        let entry = queue.look_up(key).await.expect("looked up").expect("the key exists");
        (entry.due.map(|due| due.as_secs().div_ceil(600) * 10), entry.priority, entry.flags)
    };
    let (high, normal) = (crate::Priority::High, crate::Priority::Normal);
    assert_eq!(minutes(b"a").await, (Some(120), high, 6));
    assert_eq!(minutes(b"b").await, (Some(30), high, 7));
    assert_eq!(minutes(b"\xff\0").await, (Some(30), normal, 0));

    // The batch below contains a key for each answer.
    queue.add_all(["dirty", "held", "parked"]).await.expect("added");
    let items = queue.get_many(9).await;
    let mut dirty = None;
    for item in items {
        match item.as_str() {
            Some("held") => {
                let retry = Completion::RetryAfter(Duration::from_secs(3600));
                item.complete(retry).await.map(drop).expect("the lease is valid")
            }
            Some("parked") => item.give_up("no").await.expect("the lease is valid"),
            _ => dirty = Some(item),
        }
    }
    let keys = "array['new', 'a', 'dirty', 'held', 'parked']";
    assert_eq!(many(keys), counts(2, 0, 1, 1, 0, 1));
    assert_eq!(many("array['parked', 'new'], revive => true"), counts(0, 1, 0, 0, 1, 0));
    drop(dirty);
}

#[tokio::test]
async fn keys_are_added_in_a_transaction_of_the_caller() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let queue = store(&url).await.queue("q").open().await.expect("the queue opens");
    let mut client = other(&url).await;
    let high = crate::Add::now().priority(crate::Priority::High).flags(5);
    let hour = crate::Add::after(Duration::from_secs(3600));
    // The adds are not in the order of the keys.
    let adds = || [("c", hour), ("a", high), ("c", crate::Add::now()), ("b", hour), ("c", hour)];
    let answers = [Added::New, Added::New, Added::New, Added::New, Added::Coalesced];
    for commits in [false, true] {
        let transaction = client.transaction().await.expect("begun");
        assert_eq!(add_in(&transaction, "q", adds()).await.expect("added"), answers);
        assert_eq!(queue.counts().await.expect("counted"), StateCounts::default());
        match commits {
            true => transaction.commit().await.expect("committed"),
            false => transaction.rollback().await.expect("rolled back"),
        }
    }
    assert_eq!(ready(&queue).await, ["a", "c"]);
    let a = queue.look_up("a").await.expect("looked up").expect("the key exists");
    assert_eq!((a.priority, a.flags, a.adds), (crate::Priority::High, 5, 1));
    // Without a transaction, each statement of a client commits. Keys can also be bytes.
    let bytes = [(&b"\xff\0"[..], crate::Add::now())];
    assert_eq!(add_in(&client, "q", bytes).await.expect("added"), [Added::New]);
    assert_eq!(ready(&queue).await, ["a", "c", "\\xff\\0"]);
    assert_eq!(add_in(&client, "q", [("", hour); 0]).await.expect("nothing to do"), []);

    let long = "k".repeat(Key::MAX_LENGTH + 1);
    for (queue, key, code, said) in [
        ("r", "a", "42704", "no such queue: 'r'"),
        ("q", &*long, "54000", "the key has 2049 bytes; at most 2048 are allowed"),
    ] {
        let error = add_in(&client, queue, [(key, hour)]).await.expect_err(said);
        let error = error.as_db_error().expect("the server reports the error");
        assert_eq!((error.code().code(), error.message()), (code, said));
    }
}

#[tokio::test]
async fn sql_debounces_keys() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let store = store(&url).await;
    let queue = store.queue("q").open().await.expect("the queue opens");
    let engine = at(&url, Duration::ZERO);
    stop_time(&engine).await;
    let sql = |sql: &str| server.psql(name(&url), sql);
    let second = 1_000_000;
    let due = async |key: &str| {
        let entry = queue.look_up(key).await.expect("looked up").expect("the key exists");
        entry.due.map(|due| due.as_secs())
    };
    let add = "select requeue.add('q', 'a', debounce => '2 s', at_most => '5 s')";
    for (now, added, left) in [
        (10, "new", 2),
        (11, "coalesced", 2),
        (12, "coalesced", 2),
        (13, "coalesced", 2),
        (14, "coalesced", 1),
    ] {
        set_time(&engine, now * second).await;
        assert_eq!(sql(add), added, "at {now} s");
        assert_eq!(due("a").await, Some(left), "at {now} s");
    }
    // A bound that is shorter than the quiet time becomes the quiet time. With a quiet time of zero, the key is ready
    // immediately.
    let many = "select new from requeue.add_many('q', array['b', 'c'], debounce => '3 s', at_most => '1 s')";
    assert_eq!(sql(many), "2");
    assert_eq!(due("c").await, Some(3));
    assert_eq!(sql("select requeue.add('q', 'b', debounce => '0')"), "new");
    assert_eq!(due("b").await, None);
    for (wrong, said) in [
        ("after => '1 s', debounce => '1 s'", "either a delay or debounce"),
        ("at_most => '1 s'", "at_most needs debounce"),
    ] {
        let refused = engine
            .sessions
            .query_rows(&format!("select requeue.add('q', 'd', {wrong})"), &[])
            .await;
        let refused = refused.expect_err(wrong).source.to_string();
        assert!(refused.contains(said) && refused.contains("[22023]"), "{refused}");
    }
}

#[tokio::test]
async fn sql_stores_schedules() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let queue = store(&url).await.queue("q").open().await.expect("the queue opens");
    let sql = |sql: &str| server.psql(name(&url), sql);
    let schedule = |args: &str| sql(&format!("select requeue.schedule('q', {args})"));
    schedule("'daily', '0 9 * * MON-FRI', 'europe/berlin', priority => 'low'");
    schedule("'\\xff'::bytea, 'every 10ms'");
    let item = get(&queue).await;
    assert_eq!(&**item.key(), b"\xff");
    item.succeed().await.expect("the lease is held");
    let listed = "select key, spec, zone, next > now(), paused, error, priority from requeue.list_schedules('q')";
    let shown = "\\x6461696c79|0 9 * * MON-FRI|europe/berlin|t|f||low\n\\xff|every 10ms||";
    let all = sql(listed);
    assert!(all.starts_with(shown), "{all}");
    assert_eq!(
        sql("select requeue.unschedule('q', '\\xff'::bytea), requeue.unschedule('none', 'x')"),
        "t|f"
    );
    assert_eq!(
        sql("select requeue.pause_schedule('q', 'daily'), requeue.pause_schedule('q', 'x')"),
        "t|f"
    );
    assert!(sql(listed).ends_with("||t||low"), "{}", sql(listed));
    assert_eq!(sql("select requeue.resume_schedule('q', 'daily')"), "t");
    let refused = async |args: &str| {
        let call = format!("select requeue.schedule({args})");
        other(&url).await.batch_execute(&call).await.expect_err("refused")
    };
    for (args, code, why) in [
        ("'none', 'k', 'every 5m'", "42704", "no such queue: 'none'"),
        ("'q', 'k', '* * * *', 'UTC'", "22023", "invalid schedule '* * * *'"),
        ("'q', 'k', '0 9 * * *', 'Europe/Berln'", "22023", "unknown time zone 'Europe/Berln'"),
        ("'q', 'k', '0 9 * * *'", "22023", "unknown time zone NULL"),
        ("'q', 'k', 'every 5m', 'UTC'", "22023", "a period has no time zone"),
        ("'q', 'k', 'every 5m', \"group\" => 'g'", "22023", "the queue has no groups"),
        ("'q', 'k', 'every 5m', priority => 'top'", "22023", "invalid priority"),
    ] {
        let error = refused(args).await;
        let error = error.as_db_error().expect("the server has answered");
        assert_eq!(error.code().code(), code, "{error}");
        assert!(error.message().contains(why), "{error}");
    }
    assert_eq!(sql("select count(*) from requeue.schedules"), "1");
}
