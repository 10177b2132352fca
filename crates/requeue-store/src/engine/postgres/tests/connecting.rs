//! Tests how a store connects, and connects again.

use super::*;
use crate::api::store::Store;
use crate::types::error::{ErrorKind, Kind, chain};

async fn said(url: &str) -> String {
    match Store::connect(url).await {
        Ok(_) => "nothing".to_owned(),
        Err(error) => chain(&error),
    }
}

#[tokio::test]
async fn a_store_is_found_at_its_address() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let store = Store::connect(&url).await.expect("the store connects");
    let error = chain(&store.queue("q").open().await.expect_err("there is no schema"));
    assert!(error.contains("the store has no schema yet; run `requeue store init`"), "{error}");
    // Two concurrent migrations create one schema.
    let (one, other) = tokio::join!(store.migrate(), store.migrate());
    one.and(other).expect("the schema is created");
    let queue = store
        .queue("o'ther {x}")
        .readd_policy(ReaddPolicy::Hold)
        .open()
        .await
        .expect("the queue opens");
    let error = store.queue("o'ther {x}").readd_policy(ReaddPolicy::Replace).open().await;
    assert!(
        error
            .expect_err("the queue has another policy")
            .to_string()
            .contains("is hold, not replace")
    );
    assert_eq!(queue.add("a").await.expect("added"), Added::New);
    let item = queue.get().await.expect("the queue is not shut down");
    item.retry("with a \0 in it").await.expect("the lease is valid");
    let entry = queue.look_up("a").await.expect("looked up").expect("the key exists");
    assert_eq!(entry.error.as_deref(), Some("with a \u{fffd} in it"));

    let database = url.rsplit_once('/').expect("the address is valid").1;
    server.psql(database, "update requeue.version set version = 7");
    let error = chain(&store.queue("q").open().await.expect_err("the version differs"));
    assert!(error.contains("the schema has version 7, and this program needs 2"), "{error}");
    assert!(store.migrate().await.is_err());
    server.psql(database, "drop schema requeue cascade; create schema requeue");
    let error = chain(&store.migrate().await.expect_err("the schema belongs to another program"));
    assert!(error.contains("belongs to another program"), "{error}");
}

#[tokio::test]
async fn no_password_is_in_what_is_said() {
    let Some(server) = Server::shared() else { return };
    let right = Server::PASSWORD;
    let coded: String = right.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let tcp = |host: &str, password: &str, options: &str| {
        let credentials = format!("postgres:{password}");
        format!("{}{options}", server.tcp_url(host, &credentials, "postgres"))
    };
    assert_eq!(said(&tcp("127.0.0.1", &coded, "")).await, "nothing");
    let cases = [
        (tcp("127.0.0.1", "wr0ng", ""), "password authentication failed"),
        (tcp("localhost", "wr0ng", "?sslmode=require"), "password authentication failed"),
        (tcp("127.0.0.1", "wr0ng@x", ""), "write %40 instead of @ in a user name or password"),
        (tcp("127.0.0.1", "wr0ng", "?wr0ng@1"), "the address is invalid"),
        (tcp("127.0.0.1", "", "?pasword=wr0ng"), "unknown option \"pasword\""),
        (tcp("127.0.0.1", "wr0ng", "?connections=0"), "connections=0: expected a number"),
        (tcp("nowhere.invalid", "wr0ng", ""), "nowhere.invalid"),
        (server.tcp_url("127.0.0.1", "postgres", "postgres"), "password"),
        (server.url("postgres", "n0where"), "does not exist"),
    ];
    for (url, expected) in cases {
        let said = said(&url).await;
        assert!(said.contains(expected), "{url}: {said}");
        assert!(!said.contains("wr0ng"), "{said}");
        if let Ok(address) = Address::parse(&url) {
            assert!(!format!("{address:?}{}", address.without_secrets()).contains("wr0ng"));
        }
    }
}

#[tokio::test]
async fn why_nothing_connects_has_a_kind() {
    use ErrorKind::{Authentication, Invalid, Refused, Tls, Unreachable, WrongServer};

    let Some(server) = Server::shared() else { return };
    let Some(redis) = requeue_servers::Redis::shared() else { return };
    let [nobody] = requeue_servers::free_ports();
    let coded: String = Server::PASSWORD.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let right = format!("postgres:{coded}");
    let at = |port: u16| format!("postgres://postgres@127.0.0.1:{port}/postgres");
    let is_redis = |port| format!("127.0.0.1:{port} answered, but not as a PostgreSQL server");
    for (url, kind, expected) in [
        ("postgres://h/d?speed=9".to_owned(), Invalid, "unknown option \"speed\"".to_owned()),
        (
            at(nobody),
            Unreachable,
            format!("nothing listens on 127.0.0.1:{nobody}: connection refused"),
        ),
        (at(redis.port()), WrongServer, is_redis(redis.port()) + ": it is a Redis server"),
        (at(redis.port()) + "?sslmode=require", WrongServer, is_redis(redis.port())),
        (at(redis.tls_port()), WrongServer, is_redis(redis.tls_port()) + ": it expects TLS"),
        (
            format!("postgres://postgres@127.0.0.1:{nobody},127.0.0.1:{}/d", redis.port()),
            Unreachable,
            format!("connection refused; {}", is_redis(redis.port())),
        ),
        (
            server.tcp_url("127.0.0.1", "postgres:wr0ng", "postgres"),
            Authentication,
            "password authentication failed".to_owned(),
        ),
        (
            server.tcp_url("127.0.0.1", "postgres", "postgres?passfile=/nowhere"),
            Authentication,
            "the server requires a password; set PGPASSWORD".to_owned(),
        ),
        (server.tcp_url("127.0.0.1", &right, "n0where"), Refused, "does not exist".to_owned()),
        (
            server.tcp_url("localhost", &right, "postgres?sslmode=verify-full"),
            Tls,
            "certificate".to_owned(),
        ),
    ] {
        let error = Store::connect(&url).await.expect_err(&url);
        assert!(chain(&error).contains(&expected), "{url}: {}", chain(&error));
        assert_eq!(error.kind(), kind, "{url}: {}", chain(&error));
    }
}

#[tokio::test]
async fn a_server_without_tls_is_known() {
    let Some(server) = Server::start_with(&["ssl=off"]) else { return };
    let coded: String = Server::PASSWORD.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let url = server.tcp_url("127.0.0.1", &format!("postgres:{coded}"), "postgres");
    assert_eq!(said(&url).await, "nothing");
    let error =
        Store::connect(&(url + "?sslmode=require")).await.expect_err("the server has no TLS");
    assert_eq!(error.kind(), ErrorKind::Tls, "{}", chain(&error));
    assert!(chain(&error).contains("does not support TLS"), "{}", chain(&error));
}

#[tokio::test]
async fn a_server_that_starts_may_be_waited_for() {
    let Some(server) = Server::start() else { return };
    let url = server.url("postgres", "postgres");
    server.stop();
    let error = Store::connect(&url).await.expect_err("the server is stopped");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{}", chain(&error));
    server.restart();
    let store = Store::connect(&url).await.expect("the store connects");
    drop(store);
}

#[tokio::test]
async fn a_password_comes_from_a_file() {
    use std::os::unix::fs::PermissionsExt;

    let Some(server) = Server::shared() else { return };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("pass word");
    let password = Server::PASSWORD.replace('\\', "\\\\").replace(':', "\\:");
    std::fs::write(&file, format!("127.0.0.1:{}:*:postgres:{password}\n", server.port()))
        .and_then(|()| std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)))
        .expect("the file is written");
    let url = server.tcp_url("127.0.0.1", "postgres", "postgres");
    let file = file.display().to_string().replace(' ', "%20");
    assert_eq!(said(&format!("{url}?passfile={file}")).await, "nothing");
}

#[tokio::test]
async fn a_server_is_who_it_is_asked_to_be() {
    let Some(server) = Server::shared() else { return };
    let coded: String = Server::PASSWORD.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let url = |host| server.tcp_url(host, &format!("postgres:{coded}"), "postgres");
    let certificate = server.certificate();
    // The trusted certificates must not come from the server's own directory.
    let dir = tempfile::tempdir().expect("a temporary directory");
    let roots = dir.path().join("roots.pem");
    let Ok(_) = std::fs::copy(&certificate, &roots) else { panic!("{}", certificate.display()) };
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "").expect("the file is written");
    let roots = roots.display();
    for (url, expected) in [
        (format!("{}?sslmode=disable", url("127.0.0.1")), "nothing"),
        (format!("{}?sslmode=require", url("127.0.0.1")), "nothing"),
        (format!("{}?sslmode=verify-full&sslrootcert={roots}", url("localhost")), "nothing"),
        (format!("{}?sslmode=verify-ca&sslrootcert={roots}", url("127.0.0.1")), "nothing"),
        (format!("{}?sslmode=require&sslrootcert={roots}", url("127.0.0.1")), "nothing"),
        (format!("{}?sslmode=verify-full&sslrootcert={roots}", url("127.0.0.1")), "certificate"),
        (format!("{}?sslmode=verify-full", url("localhost")), "certificate"),
        (format!("{}?sslmode=verify-ca", url("localhost")), "certificate"),
        (format!("{}?sslmode=verify-ca&sslrootcert=/nowhere", url("localhost")), "/nowhere"),
        (
            format!("{}?sslmode=verify-ca&sslrootcert={}", url("localhost"), empty.display()),
            "the file contains no certificate",
        ),
        (format!("{}?sslmode=bogus", url("localhost")), "sslmode=bogus: expected disable, "),
    ] {
        let said = said(&url).await;
        assert!(said.contains(expected), "{url}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_comes_back() {
    let Some(server) = Server::start() else { return };
    let url = server.database();
    let address = Address::parse(&url).expect("the address is valid");
    let engine = Postgres::connect(address).await.expect("the engine connects");
    engine.migrate_schema().await.expect("the schema is created");
    let place = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    let store = Store::connect(&url).await.expect("the store connects");
    let queue = store.queue("q").open().await.expect("the queue opens");
    queue.add("held").await.expect("added");
    let item = queue.get().await.expect("the queue is not shut down");

    for kill in [false, true] {
        let getting = tokio::spawn({
            let queue = queue.clone();
            async move { queue.get().await }
        });
        if kill {
            server.kill()
        } else {
            server.stop()
        }
        let asks = vec![Ask::new("b", crate::Add::now())];
        // The pool may still contain the closed connection. Either this connection fails, or no new connection can be
        // opened.
        let first = engine.add_keys(&place, asks.clone()).await.expect_err("the server is stopped");
        assert_ne!(first.kind, Kind::Refused, "{}", first.source);
        let second = engine.add_keys(&place, asks).await.expect_err("the server is stopped");
        assert_eq!(second.kind, Kind::Absent, "{}", second.source);
        // The first add waits for the server. The second add has a timeout of 1 ms.
        let adding = tokio::spawn({
            let queue = queue.clone();
            async move { queue.add("a").await }
        });
        let hasty = store.queue("q").add_timeout(Duration::from_millis(1)).open().await;
        assert!(hasty.is_err());
        server.restart();
        adding.await.expect("the task does not panic").expect("added");
        let got =
            getting.await.expect("the task does not panic").expect("the queue is not shut down");
        assert_eq!(got.as_str(), Some("a"));
        got.succeed().await.expect("the lease is valid");
        // Commits are ordered. When this add is committed, the completion is also committed.
        queue.add("b").await.expect("added");
        queue.cancel("b").await.expect("cancelled");
    }
    item.succeed().await.expect("the lease was renewed throughout");
    assert_eq!(queue.counts().await.expect("counted"), StateCounts::default());
}

#[tokio::test]
async fn a_database_that_only_speaks_the_protocol_is_refused() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let version = "CockroachDB CCL v26.3.0 (x86_64-pc-linux-gnu, built 2026/09/01, go1.25)";
    let fake = format!(
        "create schema fake; \
         create function fake.version() returns text language sql return '{version}'; \
         alter database \"{0}\" set search_path = fake, pg_catalog",
        name(&url)
    );
    server.psql(name(&url), &fake);
    let error = Store::connect(&url).await.expect_err("it is another database");
    assert_eq!(error.kind(), ErrorKind::WrongServer, "{}", chain(&error));
    let expected = "the server is not PostgreSQL, but CockroachDB, which only speaks its protocol";
    assert!(chain(&error).contains(expected) && chain(&error).contains(version), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_with_an_error_of_the_moment_is_not_absent() {
    let Some(server) = Server::start() else { return };
    let (engine, url) = engine(&server, Duration::ZERO).await;
    let queue = engine.open_queue("q", ReaddPolicy::Replace.into()).await.expect("the queue opens");
    let ask = || vec![Ask::new("a", crate::Add::now())];
    engine.add_keys(&queue, ask()).await.expect("added");
    // The statement timeout ends the count's wait for the lock.
    let database = name(&url);
    server.psql(database, &format!("alter database \"{database}\" set statement_timeout = '2s'"));
    let hasty = at(&url, Duration::ZERO);
    let mut other = super::changing::other(&url).await;
    let transaction = other.transaction().await.expect("begun");
    transaction
        .batch_execute(
            "set local statement_timeout = 0; lock table requeue.keys in access exclusive mode",
        )
        .await
        .expect("locked");
    let fault = hasty.count_keys(&queue).await.expect_err("the table is locked");
    assert_eq!(fault.kind, Kind::Unable, "{}", fault.source);
    assert!(fault.source.to_string().contains("statement timeout"), "{}", fault.source);
    transaction.rollback().await.expect("rolled back");

    server.psql(database, &format!("alter database \"{database}\" reset statement_timeout"));
    tokio::task::block_in_place(|| server.follow());
    // The socket of the standby is in the standby's directory.
    let place = format!(":{}/", server.port());
    let standby = at(&url.replacen(&place, &format!("%2Freplica{place}"), 1), Duration::ZERO);
    let fault = standby.add_keys(&queue, ask()).await.expect_err("the standby accepts no writes");
    assert_eq!(fault.kind, Kind::Unable, "{}", fault.source);
    assert!(fault.source.to_string().ends_with("[25006]"), "{}", fault.source);
}
