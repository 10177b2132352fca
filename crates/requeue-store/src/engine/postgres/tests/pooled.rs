//! Tests the engine behind pgbouncer, which may run each transaction in another session.

use requeue_servers::PgBouncer;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::changing::other;
use super::sql::store;
use super::*;
use crate::api::store::Store;
use crate::tests::get;
use crate::types::error::{ErrorKind, chain};
use crate::{Add, Queue};

const SESSIONS: u32 = 3;

/// Returns a pooler, and two addresses of a database with a schema. The first address is through the pooler, and the
/// second is direct.
async fn pooled(server: &Server) -> Option<(PgBouncer, String, String)> {
    let pooler = PgBouncer::start(server, SESSIONS)?;
    let direct = server.database();
    store(&direct).await;
    let url = pooler.url(name(&direct));
    Some((pooler, url, direct))
}

async fn open(url: &str, poll: Duration) -> Queue {
    let store = Store::connect(url).await.expect("the store connects");
    // A process polls at least once in the duration of a lease, so the lease must be long.
    store
        .queue("q")
        .poll(poll)
        .lease(Duration::from_secs(3600))
        .open()
        .await
        .expect("the queue opens")
}

/// Returns the host and port of the server itself, in the format of `listen`.
fn place(direct: &str) -> &str {
    let (_, rest) = direct.split_once('@').expect("the address has a user");
    rest.split_once('/').expect("the address has a database").0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_work_through_a_few_sessions_and_leave_them_as_they_were() {
    const MANY: usize = 150;
    let Some(server) = Server::shared() else { return };
    let Some((_pooler, url, _)) = pooled(server).await else { return };
    let set = async |clients: &[Client]| {
        let mut all = Vec::new();
        for client in clients {
            let sql = "begin; select name, setting from pg_settings \
                       where source = 'session' and name <> 'application_name' order by 1";
            let found = client.simple_query(sql).await.expect("the query succeeds");
            all.push(found.len());
        }
        for client in clients {
            client.batch_execute("rollback").await.expect("rolled back");
        }
        all
    };
    let mut clients = Vec::new();
    for _ in 0..SESSIONS {
        clients.push(other(&url).await);
    }
    let before = set(&clients).await;
    let queue = open(&format!("{url}?pooler=transaction"), Duration::from_millis(10)).await;
    let mut tasks = JoinSet::new();
    for n in 0..MANY {
        let queue = queue.clone();
        tasks.spawn(async move {
            let add = if n % 3 == 0 { Add::after(Duration::from_millis(1)) } else { Add::now() };
            assert_eq!(queue.add_with(n.to_string(), add).await.expect("added"), Added::New);
            let item = queue.get().await.expect("the queue is not shut down");
            if n % 5 == 0 {
                item.retry("no").await.expect("the lease is valid");
                get(&queue).await.succeed().await.expect("the lease is valid");
            } else {
                item.succeed().await.expect("the lease is valid");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("the task does not panic");
    }
    let counts = queue.counts().await.expect("counted");
    assert_eq!(counts, StateCounts::default());
    assert_eq!(set(&clients).await, before);
}

#[tokio::test]
async fn a_pooler_that_nobody_has_named_is_refused() {
    let Some(server) = Server::shared() else { return };
    let Some((_pooler, url, _)) = pooled(server).await else { return };
    let error = Store::connect(&url).await.expect_err("the pooler is detected");
    let error = chain(&error);
    assert!(error.contains("add pooler=transaction to the options of the address"), "{error}");
    // If the pooler is not detected when the store connects, the errors of later statements name the option.
    let client = other(&server.database()).await;
    let twice = "prepare s2 as select 1; prepare s2 as select 1";
    for sql in [twice, "execute s7"] {
        let error = client.batch_execute(sql).await.expect_err("the operation fails");
        let fault = faults::of_statement(&error);
        assert!(fault.source.to_string().contains("pooler=transaction"), "{}", fault.source);
    }
}

#[tokio::test]
async fn a_pooler_for_single_statements_is_refused() {
    let Some(server) = Server::shared() else { return };
    let direct = server.database();
    store(&direct).await;
    let Some(pooler) = PgBouncer::start_with(server, SESSIONS, "statement") else { return };
    let url = pooler.url(name(&direct));
    for options in ["", "?pooler=transaction"] {
        let url = format!("{url}{options}");
        let said = match Store::connect(&url).await {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Refused, "{url}: {}", chain(&error));
                chain(&error)
            }
            Ok(store) => {
                let error = store.queue("q").open().await.expect_err(&url);
                assert!(!error.kind().is_temporary(), "{url}: {}", chain(&error));
                chain(&error)
            }
        };
        let expected = if options.is_empty() {
            faults::POOLED
        } else {
            "the pooler has pool_mode = statement"
        };
        assert!(said.contains(expected), "{url}: {said}");
    }
}

#[tokio::test]
async fn who_waits_behind_a_pooler_listens_at_the_server() {
    let Some(server) = Server::shared() else { return };
    let Some((_pooler, url, direct)) = pooled(server).await else { return };
    let by = format!("{url}?pooler=transaction&listen={}", place(&direct));
    // The poll interval is longer than the test.
    let queue = open(&by, Duration::from_secs(3600)).await;
    for key in ["a", "b"] {
        let getting = tokio::spawn({
            let queue = queue.clone();
            async move { queue.get().await }
        });
        // This loop waits until adds know that a process waits.
        let waits = "select exists (select from requeue.queues \
                     where waited_until > requeue.now() + 1800000000)";
        while server.psql(name(&direct), waits) != "t" {
            tokio::task::yield_now().await;
        }
        server.psql(name(&direct), &format!("select requeue.add('q', '{key}')"));
        let item =
            getting.await.expect("the task does not panic").expect("the queue is not shut down");
        assert_eq!(item.as_str(), Some(key));
        item.succeed().await.expect("the lease is valid");
    }
}

#[tokio::test]
async fn who_does_not_listen_behind_a_pooler_polls_and_has_nobody_notify() {
    let Some(server) = Server::shared() else { return };
    let Some((_pooler, url, direct)) = pooled(server).await else { return };
    let queue = open(&format!("{url}?pooler=transaction"), Duration::from_millis(10)).await;
    let getting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get().await }
    });
    server.psql(name(&direct), "select requeue.add('q', 'a')");
    let item = getting.await.expect("the task does not panic").expect("the queue is not shut down");
    assert_eq!(item.as_str(), Some("a"));
    item.succeed().await.expect("the lease is valid");
    assert_eq!(server.psql(name(&direct), "select waited_until from requeue.queues"), "0");
}

#[tokio::test]
async fn a_transaction_of_the_caller_adds_through_a_pooler() {
    let Some(server) = Server::shared() else { return };
    let Some((_pooler, url, direct)) = pooled(server).await else { return };
    let queue = open(&direct, Duration::from_secs(1)).await;
    let (mut one, mut two) = (other(&url).await, other(&url).await);
    for n in 0..20 {
        let (first, second) =
            (one.transaction().await.expect("begun"), two.transaction().await.expect("begun"));
        add_in(&second, "q", [(format!("two-{n}"), Add::now())]).await.expect("added");
        add_in(&first, "q", [(format!("one-{n}"), Add::now())]).await.expect("added");
        first.commit().await.expect("committed");
        second.rollback().await.expect("rolled back");
    }
    assert_eq!(queue.counts().await.expect("counted").ready, 20);
}

#[test]
fn an_address_names_the_pooler_and_where_to_listen() {
    use tokio_postgres::config::Host;

    let parsed = |url: &str| Address::parse(url).map_err(|error| error.to_string());
    let listens = |url: &str| {
        let listen = parsed(url).expect("the address is valid").listen?;
        Some((listen.get_hosts().to_vec(), listen.get_ports().to_vec()))
    };
    let tcp = |host: &str, port| Some((vec![Host::Tcp(host.to_owned())], vec![port]));
    let pooler = "postgres://ann:p%40ss@pooler:6432/shop?connections=2";
    assert_eq!(listens(pooler), tcp("pooler", 6432));
    assert_eq!(listens(&format!("{pooler}&pooler=transaction")), None);
    assert_eq!(listens(&format!("{pooler}&listen=db")), tcp("db", 5432));
    let both = format!("{pooler}&pooler=transaction&listen=db:5433");
    assert_eq!(listens(&both), tcp("db", 5433));
    let listen = parsed(&both).expect("the address is valid").listen.expect("the listener runs");
    assert_eq!((listen.get_user(), listen.get_password()), (Some("ann"), Some(&b"p@ss"[..])));
    assert_eq!(listen.get_dbname(), Some("shop"));
    assert_eq!(listens("postgres://?pooler=transaction&listen=db:5433"), tcp("db", 5433));
    for (options, said) in [
        ("pooler=session", "pooler=session: expected transaction"),
        ("listen=", "listen=: expected HOST:PORT"),
        ("listen=db:port", "listen=db:port"),
    ] {
        let error = parsed(&format!("{pooler}&{options}")).expect_err(options);
        assert!(error.contains(said), "{error}");
        assert!(!error.contains("p@ss") && !error.contains("p%40ss"), "{error}");
    }
}
