//! Tests groups: limits across processes, wakes, adds in SQL, and the cost of claims.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::changing::{MINUTE, claim, end, failing, other};
use super::dropping::waiting;
use super::*;
use crate::engine::{Delivery, Failing, Failure, Finish, GroupChange};
use crate::types::add::Add;
use crate::types::inspect::GroupInfo;

/// The time limit for an event that does not depend on the clock.
const PATIENCE: Duration = Duration::from_secs(900);

fn with_groups(limit: Option<u32>) -> Settings {
    Settings { group_by: Some("".into()), group_limit: limit, ..Settings::default() }
}

fn ask(group: &str, key: &str) -> Ask {
    Ask { group: Some(group.into()), ..Ask::new(key, Add::now()) }
}

async fn claim_some(engine: &Postgres, queue: &Place, max: usize) -> Vec<Delivery> {
    engine.claim_keys(queue, claim(max, MINUTE)).await.expect("claimed").items
}

/// Several processes claim and complete keys. A worker adds 1 to the count after a delivery, and subtracts 1 before the
/// completion. Therefore, the count never exceeds the number of keys in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_group_exceeds_its_limit_while_processes_claim() {
    const WORKERS: usize = 4;
    const ROUNDS: usize = 60;
    const GROUPS: usize = 5;
    let Some(server) = Server::shared() else { return };
    let (first, url) = engine(server, WHOLE).await;
    let queue = first.open_queue("q", with_groups(Some(2))).await.expect("the queue opens");
    let three = GroupChange::Limit(Some(3));
    first.change_group(&queue, "g0", three).await.expect("changed");
    let in_flight: Arc<[AtomicUsize; GROUPS]> = Arc::new([const { AtomicUsize::new(0) }; GROUPS]);
    let delivered = Arc::new(AtomicUsize::new(0));
    let work = |worker: usize| {
        let (url, in_flight, delivered) =
            (url.clone(), Arc::clone(&in_flight), Arc::clone(&delivered));
        async move {
            let engine = at(&url, WHOLE);
            let queue = engine.find_queue("q").await.expect("found").expect("it exists");
            let mut random = fastrand::Rng::with_seed(worker as u64);
            let mut tokens: HashMap<Key, i64> = HashMap::new();
            for round in 0..ROUNDS {
                let asks: Vec<Ask> = (0..6)
                    .map(|n| {
                        let group = format!("g{}", random.usize(..GROUPS));
                        ask(&group, &format!("{worker}/{round}/{n}"))
                    })
                    .collect();
                engine.add_keys(&queue, asks).await.expect("added");
                let max = random.usize(1..8);
                let items = claim_some(&engine, &queue, max).await;
                for out in &items {
                    assert!(tokens.insert(out.key.clone(), out.epoch) < Some(out.epoch));
                    let group = out.group.as_deref().expect("the queue has groups");
                    let n: usize = group[1..].parse().expect("a number");
                    let before = in_flight[n].fetch_add(1, Ordering::SeqCst);
                    let limit = if n == 0 { 3 } else { 2 };
                    assert!(before < limit, "{group} has {} keys in flight", before + 1);
                    delivered.fetch_add(1, Ordering::SeqCst);
                }
                for out in items {
                    let group = out.group.as_deref().expect("the queue has groups");
                    let n: usize = group[1..].parse().expect("a number");
                    // From now on, another key of the group may be claimed, because the completion may take effect
                    // before it is answered.
                    in_flight[n].fetch_sub(1, Ordering::SeqCst);
                    let how = match random.u8(0..4) {
                        0 => Finish::Release(out.asked),
                        1 => Finish::Unclaim(out.asked, out.queued),
                        2 => Finish::Retry(failing(), Failure::new(out.asked, "no")),
                        _ => Finish::Succeed,
                    };
                    let ended = engine.finish_deliveries(&queue, end(&out, how)).await;
                    assert_eq!(ended.expect("finished"), [true]);
                }
            }
        }
    };
    let workers: Vec<_> = (0..WORKERS).map(|worker| tokio::spawn(work(worker))).collect();
    for worker in workers {
        worker.await.expect("the task does not panic");
    }
    assert!(delivered.load(Ordering::SeqCst) > ROUNDS, "{delivered:?}");
    // No key was lost: each key can be claimed and completed.
    while first.count_keys(&queue).await.expect("counted") != StateCounts::default() {
        for out in claim_some(&first, &queue, 50).await {
            let ended = first.finish_deliveries(&queue, end(&out, Finish::Succeed)).await;
            assert_eq!(ended.expect("finished"), [true]);
        }
    }
}

/// Makes claims that find no key, until a claim need not be repeated immediately.
async fn wait(engine: &Postgres, queue: &Place) {
    let claim = Claim { poll: Duration::from_secs(1), ..claim(1, PATIENCE) };
    while let Some(Duration::ZERO) = {
        let claimed = engine.claim_keys(queue, claim).await.expect("claimed");
        assert_eq!(claimed.items, []);
        claimed.next
    } {}
}

async fn woken(wakes: &mut watch::Receiver<u64>) {
    let changed = tokio::time::timeout(PATIENCE, wakes.changed()).await;
    changed.expect("within the time limit").expect("the listener runs");
    wakes.mark_unchanged();
}

/// A completion that is not committed still occupies a place in its group. It does not see a key that an add makes
/// ready, so it sends no wake for this key.
#[tokio::test]
async fn a_slot_that_is_freed_during_an_add_is_used_without_a_poll() {
    let Some(server) = Server::shared() else { return };
    let (holder, url) = engine(server, WHOLE).await;
    let queue = holder.open_queue("q", with_groups(Some(1))).await.expect("the queue opens");
    let waiter = at(&url, WHOLE);
    let place = waiter.find_queue("q").await.expect("found").expect("it exists");
    let mut wakes = waiter.subscribe_wakes(&place);
    woken(&mut wakes).await;
    holder.add_keys(&queue, vec![ask("a", "1")]).await.expect("added");
    let out = claim_some(&holder, &queue, 1).await;
    wait(&waiter, &place).await;
    let client = other(&url).await;
    let finish = format!(
        "begin; select requeue.finish({}, true, row(array['1'::bytea], array[{}], array[0::smallint], \
         null, null, null, null, null, null, null, null, null, null, null, null)::requeue.ends)",
        queue.id, out[0].epoch
    );
    client.batch_execute(&finish).await.expect("completed");
    holder.add_keys(&queue, vec![ask("a", "2")]).await.expect("added");
    woken(&mut wakes).await;
    // Until the commit, the group is at its limit.
    let claim = Claim { poll: PATIENCE, ..claim(1, PATIENCE) };
    let claimed = waiter.claim_keys(&place, claim).await.expect("claimed");
    assert_eq!(claimed.items, []);
    client.batch_execute("commit").await.expect("committed");
    loop {
        // While the transaction is in progress, an alarm wakes the process.
        woken(&mut wakes).await;
        let items = waiter.claim_keys(&place, claim).await.expect("claimed").items;
        if let [out] = &items[..] {
            assert_eq!(out.key.as_str(), Some("2"));
            break;
        }
    }
}

#[tokio::test]
async fn what_frees_a_slot_wakes_another_process() {
    let Some(server) = Server::shared() else { return };
    let (holder, url) = engine(server, WHOLE).await;
    stop_time(&holder).await;
    let queue = holder.open_queue("q", with_groups(Some(1))).await.expect("the queue opens");
    let waiter = at(&url, WHOLE);
    let place = waiter.find_queue("q").await.expect("found").expect("it exists");
    let another = holder.open_queue("another", Settings::default()).await.expect("the queue opens");
    let mut wakes = waiter.subscribe_wakes(&place);
    let mut others = waiter.subscribe_wakes(&another);
    woken(&mut wakes).await;
    woken(&mut others).await;
    let client = other(&url).await;
    let notify = format!("notify requeue_{}", another.id);
    // The closure waits like a process that has no key. Notifications arrive in order. Therefore, when the notification
    // of this statement arrives, all earlier notifications have arrived.
    let mut wait_again = async |wakes: &mut watch::Receiver<u64>| {
        wait(&waiter, &place).await;
        client.batch_execute(&notify).await.expect("notified");
        woken(&mut others).await;
        wakes.mark_unchanged();
    };
    let asks = ["1", "2", "3", "4", "5"].map(|key| ask("a", key));
    holder.add_keys(&queue, asks.into()).await.expect("added");
    for how in [Finish::Succeed, Finish::Cancelled, Finish::GiveUp(failure())] {
        let out = claim_some(&holder, &queue, 9).await;
        assert_eq!(out.len(), 1, "the group is at its limit");
        wait_again(&mut wakes).await;
        let ended = holder.finish_deliveries(&queue, end(&out[0], how)).await;
        assert_eq!(ended.expect("finished"), [true]);
        woken(&mut wakes).await;
    }
    // If a process finds an expired lease, it wakes the other processes. In this test, the expiry parks the key, so the
    // key is not ready.
    let out = claim_some(&holder, &queue, 1).await;
    wait_again(&mut wakes).await;
    set_time(&holder, 120_000_000).await;
    server.psql(name(&url), "update requeue.queues set waited_until = 200000000");
    let expired = Failing { max_failures: Some(1), ..failing() };
    let claim = Claim { expired, poll: Duration::ZERO, ..claim(1, MINUTE) };
    let claimed = holder.claim_keys(&queue, claim).await.expect("claimed");
    assert_eq!(claimed.parked.len(), 1);
    assert_ne!(claimed.items[0].key, out[0].key);
    woken(&mut wakes).await;
    // A change of a limit also wakes processes.
    holder.change_group(&queue, "a", GroupChange::Limit(Some(2))).await.expect("changed");
    woken(&mut wakes).await;
    holder.set_group_limit(&queue, Some(5)).await.expect("changed");
    woken(&mut wakes).await;
}

fn failure() -> Failure {
    Failure::new(crate::engine::Asked::default(), "no")
}

/// After each kind of write, the index for claims contains only ready keys.
#[tokio::test]
async fn only_ready_keys_are_marked_as_due() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    stop_time(&engine).await;
    let queue = engine.open_queue("q", with_groups(None)).await.expect("the queue opens");
    let client = other(&url).await;
    let check = async |what: &str| {
        let sql = "select coalesce(string_agg(convert_from(key, 'UTF8'), ' ' order by key) \
                       filter (where is_due), ''), \
                   count(*) filter (where is_due <> (state = 0 and at <= requeue.now())) from requeue.keys";
        let row = client.query_one(sql, &[]).await.expect("the query succeeds");
        assert_eq!(row.get::<_, i64>(1), 0, "after {what}");
        row.get::<_, String>(0)
    };
    let add = async |key: &str, add: Add| {
        let asks = vec![Ask { group: Some("a".into()), ..Ask::new(key, add) }];
        engine.add_keys(&queue, asks).await.expect("added");
    };
    add("1", Add::now()).await;
    add("2", Add::after(MINUTE)).await;
    assert_eq!(check("two adds").await, "1");
    add("2", Add::after(MINUTE / 2)).await;
    add("1", Add::after(MINUTE)).await;
    assert_eq!(check("adds of keys that are ready or wait").await, "1");
    add("2", Add::now()).await;
    assert_eq!(check("an add that replaces a delay").await, "1 2");
    add("1", Add::after(MINUTE).merge(crate::Merge::Exactly)).await;
    assert_eq!(check("an add of exactly this time").await, "2");
    let revived = engine.make_ready(&queue, vec!["1".into()], State::Waiting).await;
    assert_eq!(revived.expect("revived"), [Some(true)]);
    assert_eq!(check("a key was made ready").await, "1 2");
    let claimed = claim_some(&engine, &queue, 9).await;
    assert_eq!(check("a claim").await, "");
    add("1", Add::now()).await;
    add("2", Add::after(MINUTE / 2)).await;
    assert_eq!(check("adds of keys in flight").await, "");
    for out in claimed {
        engine.finish_deliveries(&queue, end(&out, Finish::Succeed)).await.expect("finished");
    }
    assert_eq!(check("two completions").await, "1");
    for (how, due) in [
        (Finish::Release(crate::engine::Asked::default()), "1"),
        (Finish::Unclaim(crate::engine::Asked::default(), Duration::ZERO), "1"),
        (Finish::RetryAfter(Duration::ZERO, None, failure()), "1"),
        (Finish::RetryAfter(MINUTE, None, failure()), ""),
    ] {
        let out = claim_some(&engine, &queue, 1).await.pop().expect("a key is ready");
        let said = format!("{how:?}");
        engine.finish_deliveries(&queue, end(&out, how)).await.expect("finished");
        assert_eq!(check(&said).await, due, "{said}");
    }
    set_time(&engine, 70_000_000).await;
    assert_eq!(claim_some(&engine, &queue, 1).await.len(), 1);
    assert_eq!(check("a claim after the delays").await, "1");
}

#[tokio::test]
async fn a_claim_names_when_to_come_back() {
    let Some(server) = Server::shared() else { return };
    let (one, url) = engine(server, WHOLE).await;
    stop_time(&one).await;
    let queue = one.open_queue("q", with_groups(Some(2))).await.expect("the queue opens");
    one.add_keys(&queue, vec![ask("a", "1")]).await.expect("added");
    let other = other(&url).await;
    let next = async || {
        let claimed = one.claim_keys(&queue, claim(9, MINUTE)).await.expect("claimed");
        assert_eq!(claimed.items, []);
        claimed.next
    };
    // The lock stands for another claim that is visiting the group.
    let lock =
        format!("begin; select pg_advisory_xact_lock(1920034674, hashtext({} || ' a'))", queue.id);
    other.batch_execute(&lock).await.expect("locked");
    assert_eq!(next().await, Some(Duration::from_millis(5)));
    other.batch_execute("rollback; begin; select requeue.add('q', '1')").await.expect("added");
    assert_eq!(next().await, Some(Duration::from_millis(20)));
    other.batch_execute("rollback").await.expect("rolled back");
    assert_eq!(claim_some(&one, &queue, 9).await.len(), 1);
    assert_eq!(next().await, None);
    // The key is added before it is due.
    let later = Ask { group: Some("a".into()), ..Ask::new("2", Add::after(MINUTE)) };
    one.add_keys(&queue, vec![later]).await.expect("added");
    assert_eq!(next().await, Some(MINUTE));
    // The order of the groups is the same after a pause.
    one.add_keys(&queue, vec![ask("b", "3")]).await.expect("added");
    one.set_paused(&queue, true).await.expect("paused");
    let claimed = one.claim_keys(&queue, claim(9, MINUTE)).await.expect("claimed");
    assert!(claimed.is_paused && claimed.items.is_empty() && claimed.next.is_none());
    one.set_paused(&queue, false).await.expect("resumed");
    assert_eq!(claim_some(&one, &queue, 9).await.len(), 1);
}

#[tokio::test]
async fn sql_adds_keys_to_groups() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    let sql = |sql: &str| server.psql(name(&url), sql);
    assert_eq!(
        sql(
            "select holds, group_by, group_limit from requeue.open('g', group_by => '', group_limit => 4)"
        ),
        "t||4"
    );
    sql("select requeue.open('q'), requeue.open('p', group_by => '^[^/]*')");
    let queue = engine.find_queue("g").await.expect("found").expect("it exists");
    assert_eq!(queue.group_by.as_deref(), Some(""));
    assert_eq!(sql(r#"select requeue.add('g', 'a', "group" => 'tenant')"#), "new");
    assert_eq!(
        sql(r#"select new from requeue.add_many('g', array['b', 'c'], "group" => 'ü')"#),
        "2"
    );
    assert_eq!(sql("select requeue.add('g', 'd')"), "new");
    // The key is already in the queue, so an add to another group does not move it.
    assert_eq!(sql(r#"select requeue.add('g', 'a', "group" => 'other')"#), "coalesced");
    assert_eq!(sql(r#"select requeue.add('p', 'x/y', "group" => 'x')"#), "new");
    let client = other(&url).await;
    let added = add_in_group(&client, "g", "in", [("e", Add::now()), ("f", Add::now())]).await;
    assert_eq!(added.expect("added"), [Added::New; 2]);
    assert_eq!(add_in(&client, "g", [("h", Add::now())]).await.expect("added"), [Added::New]);
    let page = engine.read_page(&queue, None, None, 99).await.expect("a page");
    let groups: Vec<_> =
        page.iter().map(|entry| entry.group.as_deref().unwrap_or("none")).collect();
    assert_eq!(groups, ["tenant", "ü", "ü", "", "in", "in", ""]);
    sql(
        "insert into requeue.queues (name, hold, revive, group_by) values ('odd', true, true, '(')",
    );
    let store = crate::Store::connect(&url).await.expect("the store connects");
    let opened = store.queue("odd").open().await.expect_err("the pattern is wrong");
    let said = "is not a regular expression: unclosed group; drop the queue, and create it again";
    assert!(opened.to_string().ends_with(said), "{opened}");
    for (call, said) in [
        (
            "requeue.open('r', group_limit => 0)",
            "invalid limit 0 of the groups of queue 'r': use at least 1",
        ),
        (
            "requeue.open('r', group_limit => 2)",
            "the queue 'r' has a limit of its groups, and no groups (With group_by => ''",
        ),
        (
            r#"requeue.add('q', 'a', "group" => 'x')"#,
            "the queue has no groups, and the add names the group 'x'",
        ),
        (
            "requeue.add('p', 'x/y')",
            "the add names no group, and only the library extracts it with the pattern '^[^/]*'",
        ),
        ("requeue.add_many('p', array['x/y'])", "the add names no group"),
        (r#"requeue.add('g', 'a', "group" => repeat('é', 51))"#, "the name of the group"),
        (
            r#"requeue.add('g', 'a', "group" => e'a\nb')"#,
            r#"the name of the group "a\nb" has control characters; remove them"#,
        ),
    ] {
        let fault = engine.sessions.query_row(&format!("select {call}"), &[]).await;
        let fault = fault.expect_err(call);
        assert_eq!(fault.kind, crate::types::error::Kind::Refused, "{call}");
        assert!(fault.source.to_string().starts_with(said), "{call}: {}", fault.source);
    }
}

#[tokio::test]
async fn groups_are_listed_and_dropped_with_their_queue() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    let queue = engine.open_queue("q", with_groups(Some(7))).await.expect("the queue opens");
    engine.add_keys(&queue, vec![ask("b", "1"), ask("b", "2"), ask("", "3")]).await.expect("added");
    for change in [GroupChange::Weight(3), GroupChange::Limit(Some(1)), GroupChange::Paused(true)] {
        engine.change_group(&queue, "c", change).await.expect("changed");
    }
    claim_some(&engine, &queue, 2).await;
    let all = engine.list_groups(&queue, None, 9).await.expect("listed");
    let shown = |group: &GroupInfo| {
        let GroupInfo { name, counts, limit, weight, is_paused, .. } = group;
        let (ready, in_flight) = (counts.ready, counts.in_flight);
        format!("{name}: {ready} {in_flight} {limit:?} {weight} {is_paused}")
    };
    let shown: Vec<String> = all.iter().map(shown).collect();
    let expected = [": 0 1 Some(7) 1 false", "b: 1 1 Some(7) 1 false", "c: 0 0 Some(1) 3 true"];
    assert_eq!(shown, expected);
    let page = engine.list_groups(&queue, Some(""), 1).await.expect("listed");
    assert_eq!(page.iter().map(|group| &*group.name).collect::<Vec<_>>(), ["b"]);
    engine.drop_queue("q", true).await.expect("dropped");
    assert_eq!(server.psql(name(&url), "select count(*) from requeue.groups"), "0");
    let gone = engine.change_group(&queue, "c", GroupChange::Weight(1)).await;
    assert_eq!(gone.expect_err("dropped").kind, crate::types::error::Kind::Dropped);
    let gone = engine.set_group_limit(&queue, None).await;
    assert_eq!(gone.expect_err("dropped").kind, crate::types::error::Kind::Dropped);
}

/// Keys that were claimed when the queue had no limit count towards its first limit. The first claim commits before the
/// limit is set. The second commits while the limit waits for it. The third begins during this wait, and commits last.
#[tokio::test]
async fn the_first_limit_counts_all_keys_in_flight() {
    let Some(server) = Server::shared() else { return };
    for is_for_all in [true, false] {
        let (engine, url) = engine(server, WHOLE).await;
        let queue = engine.open_queue("q", with_groups(None)).await.expect("the queue opens");
        let keys = ["a1", "a2", "b1", "b2", "c1", "c2"];
        let asks = keys.map(|key| ask(&key[..1], key));
        engine.add_keys(&queue, asks.into()).await.expect("added");
        let (one, two) = (other(&url).await, other(&url).await);
        let claim = async |client: &tokio_postgres::Client, after: &str, group: u8| {
            let row = client.query_one(&claim_after(1, after), &[]).await.expect("claimed");
            let keys: Vec<Vec<u8>> = row.get(0);
            assert_eq!(keys.iter().map(|key| key[0]).collect::<Vec<_>>(), [group]);
        };
        claim(&one, "'b'", b'c').await;
        one.batch_execute("begin").await.expect("begun");
        claim(&one, "null", b'a').await;
        let (setter, of) = (at(&url, WHOLE), queue.clone());
        let setter = tokio::spawn(async move {
            if is_for_all {
                return setter.set_group_limit(&of, Some(1)).await;
            }
            for group in ["a", "b", "c"] {
                setter.change_group(&of, group, GroupChange::Limit(Some(1))).await?;
            }
            Ok(())
        });
        waiting(&two, || setter.is_finished()).await;
        two.batch_execute("begin").await.expect("begun");
        claim(&two, "'a'", b'b').await;
        one.batch_execute("commit").await.expect("committed");
        setter.await.expect("no panic").expect("the limit is set");
        two.batch_execute("commit").await.expect("committed");
        assert_eq!(claim_some(&engine, &queue, 9).await, [], "{is_for_all}");
    }
}

/// Returns a claim of up to 30 keys.
fn claim_30() -> String {
    claim_after(30, "null")
}

/// Returns a claim of up to `max` keys that begins after a group of normal priority.
fn claim_after(max: usize, group: &str) -> String {
    let low = "(-9223372036854775808)::bigint";
    format!(
        "select keys from requeue.claim_turns(1, true, {max}, 3, 60000000, 1, 1, 0, null, \
         array[{low}, {low}, {low}, {low}], false, 'w', '{{}}', '{{}}', '{{}}', \
         array[null, {group}, null]::text[], array[16, 16, 16])"
    )
}

/// Returns the number of rows that the client's transaction has read.
async fn rows_read(client: &tokio_postgres::Client) -> i64 {
    let read = "select (seq_tup_read + idx_tup_fetch)::bigint from pg_stat_xact_user_tables \
                where relid = 'requeue.keys'::regclass";
    client.query_one(read, &[]).await.expect("the query succeeds").get(0)
}

/// A claim reads the same number of rows with 20,000 throttled keys as without them.
#[tokio::test]
async fn a_claim_reads_no_throttled_key() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    engine.open_queue("q", with_groups(Some(2))).await.expect("the queue opens");
    let client = other(&url).await;
    let run = async |sql: &str| client.batch_execute(sql).await.expect(sql);
    let claim = claim_30();
    // The plans are prepared while the table is empty, as in a process that was started early.
    run(&claim).await;
    let fill = |group: &str, keys: usize| {
        format!(
            "select requeue.add_many('q', array(select '{group}' || n from generate_series(1, {keys}) n), \
             \"group\" => '{group}')"
        )
    };
    for group in 0..10 {
        run(&fill(&format!("busy{group}-"), 2000)).await;
    }
    run(&claim).await;
    run(&fill("free", 100)).await;
    run(&fill("more", 100)).await;
    run("begin").await;
    let keys: Vec<Vec<u8>> = client.query_one(&claim, &[]).await.expect("claimed").get(0);
    assert_eq!(keys.len(), 4, "two groups are below their limits of 2");
    let read = rows_read(&client).await;
    run("commit").await;
    assert!((1..=200).contains(&read), "{read} rows for 4 keys");
}

/// In this queue, all keys have the same priority. If a plan ignored the order of an index, it would read all keys to
/// find that none has another priority.
#[tokio::test]
async fn a_claim_reads_no_key_in_search_of_another_priority() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    engine.open_queue("q", with_groups(None)).await.expect("the queue opens");
    let client = other(&url).await;
    let run = async |sql: &str| client.batch_execute(sql).await.expect(sql);
    let add = "select requeue.add_each('q', array_agg(convert_to(n % 100 || '-' || n, 'utf8')), \
               array_agg(0::bigint), array_agg(0::smallint), array_agg(0::smallint), array_agg(0), '{}', \
               array_agg((n % 100)::text)) from generate_series(0, 4999) n group by n / 100";
    run(add).await;
    for statistics in ["", "analyze requeue.keys"] {
        run(statistics).await;
        run("begin").await;
        let keys: Vec<Vec<u8>> = client.query_one(&claim_30(), &[]).await.expect("claimed").get(0);
        assert_eq!(keys.len(), 30);
        let read = rows_read(&client).await;
        run("commit").await;
        assert!((1..=200).contains(&read), "{read} rows for 30 keys ({statistics})");
    }
}

#[tokio::test]
async fn a_part_of_a_claim_is_for_the_priority_of_the_oldest_key() {
    let Some(server) = Server::shared() else { return };
    let (engine, _) = engine(server, WHOLE).await;
    stop_time(&engine).await;
    let queue = engine.open_queue("q", with_groups(None)).await.expect("the queue opens");
    let add = async |now: i64, group: &str, keys: [&str; 3], priority: crate::Priority| {
        set_time(&engine, now).await;
        let asks = keys.map(|key| Ask {
            group: Some(group.into()),
            ..Ask::new(key, Add::now().priority(priority))
        });
        engine.add_keys(&queue, asks.into()).await.expect("added");
    };
    // The oldest keys are in a paused group.
    add(10, "paused", ["p1", "p2", "p3"], crate::Priority::Normal).await;
    engine.change_group(&queue, "paused", GroupChange::Paused(true)).await.expect("paused");
    add(20, "a", ["l1", "l2", "l3"], crate::Priority::Low).await;
    add(30, "a", ["h1", "h2", "h3"], crate::Priority::High).await;
    add(40, "b", ["b1", "b2", "b3"], crate::Priority::High).await;
    for (max, oldest, expected) in [
        (2, 0, ["h1", "b1"].as_slice()),
        (3, 1, &["l1", "h2", "b2"]),
        (9, 0, &["h3", "b3", "l2", "l3"]),
    ] {
        let claim = Claim { oldest, ..claim(max, MINUTE) };
        let claimed = engine.claim_keys(&queue, claim).await.expect("claimed");
        let mut keys: Vec<String> = claimed.items.iter().map(|out| out.key.to_string()).collect();
        // Keys that were added together have no defined order, so only their first letters are compared.
        keys.iter_mut().for_each(|key| key.truncate(1));
        let expected: Vec<&str> = expected.iter().map(|key| &key[..1]).collect();
        assert_eq!(keys, expected, "a claim of {max}");
    }
}
