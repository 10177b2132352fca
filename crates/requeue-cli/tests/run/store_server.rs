//! Queues on a server, which many machines can share.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use requeue_servers::{Postgres, Redis, RedisCluster};
use rustix::process::Signal;

use crate::support::{Ended, Gate, Live, directory, end, until};

fn requeue(subcommand: &[&str], url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.args(subcommand).args(["--store", url]).args(args).env("LC_ALL", "C");
    command
}

fn call(subcommand: &str, url: &str, args: &[&str]) -> Ended {
    end(&mut requeue(&[subcommand], url, args), "")
}

fn add(url: &str, keys: &[&str]) {
    let ended = call("add", url, keys);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

#[test]
fn a_key_with_a_damaged_row_is_listed_and_the_others_run() {
    let Some(server) = Redis::start() else { return };
    let url = server.url("");
    assert_eq!(end(&mut requeue(&["store", "init"], &url, &[]), "").code(), Some(0));
    add(&url, &["a", "bad", "b"]);
    let rows = server.cli(&["keys", "*:rows"]);
    server.cli(&["hset", rows.trim(), "bad", "not a row"]);

    let work = |args: &[&str]| call("work", &url, &[&["--until-empty"], args].concat());
    let ended = work(&["-j1", "-c", "echo $1"]);
    assert_eq!(ended.sorted(), ["a", "b"], "{}", ended.stderr);
    let reported: Vec<_> = ended.stderr.lines().filter(|line| line.contains("damaged")).collect();
    assert_eq!(reported.len(), 1, "{}", ended.stderr);
    assert!(reported[0].contains("bad") && reported[0].contains("9 bytes"), "{reported:?}");
    let text = call("status", &url, &[]).text();
    assert!(text.contains("damaged     1; add the keys again, or cancel them:\n  bad\t"), "{text}");
    let status = |args: &[&str]| -> serde_json::Value {
        serde_json::from_str(&call("status", &url, args).text()).expect("it is JSON")
    };
    let json = status(&["--json"]);
    assert_eq!((&json["damaged"], &json["damaged_keys"][0]["key"]), (&1.into(), &"bad".into()));
    let json = status(&["--in-flight", "--json"]);
    assert_eq!((&json["damaged"], &json["in_flight_keys"]), (&1.into(), &serde_json::json!([])));
    let ended = call("drop", &url, &["default"]);
    assert_eq!(ended.code(), Some(1));
    assert!(ended.stderr.contains("0 parked, 1 damaged)"), "{}", ended.stderr);

    add(&url, &["bad"]);
    assert_eq!(work(&["-c", "echo $1"]).sorted(), ["bad"]);
    assert_eq!(status(&["--json"])["damaged"], 0);
}

/// The environment variables with passwords, by the scheme of the store.
const PASSWORDS: [(&str, &str); 4] = [
    ("postgres", "PGPASSWORD"),
    ("postgresql", "PGPASSWORD"),
    ("redis", "REDISCLI_AUTH"),
    ("rediss", "REDISCLI_AUTH"),
];

/// Commands do not see the password of the store.
#[test]
fn commands_do_not_see_the_password_of_the_store() {
    let Some((postgres, redis)) = Postgres::start().zip(Redis::start()) else { return };
    redis.cli(&["config", "set", "requirepass", "redis's"]);
    let dir = directory("passwords");
    let envs = [("PGPASSWORD", "postgres's"), ("REDISCLI_AUTH", "redis's")];
    let script = r#"echo "${PGPASSWORD-none} ${REDISCLI_AUTH-none}""#;
    let certificate = redis.certificate();
    let with_tls = format!("{}?ca={}", redis.tls_url("localhost"), certificate.display());
    let plain = redis.url("");
    let database = postgres.database();
    let long = database.replacen("postgres:", "postgresql:", 1);
    for (url, (scheme, variable)) in
        [&database, &long, &plain, &with_tls].into_iter().zip(PASSWORDS)
    {
        assert!(url.starts_with(&format!("{scheme}:")), "{url}");
        let requeue = |args: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
            command.args(args).args(["--store", url]).current_dir(&dir).envs(envs);
            command
        };
        let all = envs.map(|(_, value)| value).join(" ") + "\n";
        let others = envs.map(|(name, value)| if name == variable { "none" } else { value });
        let others = others.join(" ") + "\n";
        assert_eq!(end(&mut requeue(&["store", "init"]), "").code(), Some(0), "{url}");
        for (args, expected) in [
            (&["work", "--until-empty"][..], &others),
            (&["work", "--until-empty", "--pass-passwords"], &all),
            (&["run"], &others),
            (&["run", "--pass-passwords"], &all),
        ] {
            assert_eq!(end(&mut requeue(&["add", "key"]), "").code(), Some(0), "{url}");
            let ended = end(requeue(args).args(["-c", script]), "");
            let is = (ended.code(), ended.text());
            assert_eq!(is, (Some(0), expected.clone()), "{url} {args:?}: {}", ended.stderr);
        }
    }
}

/// A variable that the program reads is hidden from commands, or known to hold no password.
#[test]
fn no_other_variable_that_is_read_is_a_password() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the directory of crates");
    let mut grep = Command::new("grep");
    grep.args(["-rhoE", "--exclude-dir=tests", r#"env::var(_os)?\("[^"]*""#]).current_dir(crates);
    let found = end(
        grep.args([
            "requeue",
            "requeue-cli/src",
            "requeue-http",
            "requeue-kube",
            "requeue-leases",
            "requeue-store",
        ]),
        "",
    );
    let mut read: Vec<_> = found
        .sorted()
        .iter()
        .map(|line| line.split('"').nth(1).expect("a name").to_owned())
        .collect();
    read.sort();
    read.dedup();
    read.retain(|name| !PASSWORDS.iter().any(|(_, password)| name == password));
    // PGPASSFILE names a file that only its owner can read.
    assert_eq!(read, ["COMPUTERNAME", "PATH", "PGPASSFILE", "USER"]);
}

/// Returns the numbers of keys: ready, waiting, in flight and parked.
fn status(url: &str) -> [u64; 4] {
    let ended = call("status", url, &["--json"]);
    let status: serde_json::Value =
        serde_json::from_str(&ended.text()).unwrap_or_else(|_| panic!("{}", ended.stderr));
    ["ready", "waiting", "in_flight", "parked"].map(|state| status[state].as_u64().expect(state))
}

/// Creates a store. Other subcommands do not create it.
fn init(url: &str) {
    let ended = call("add", url, &["k"]);
    assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
    for _ in 0..2 {
        let ended = end(&mut requeue(&["store", "init"], url, &[]), "");
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    }
}

/// Keys are added and processed, and failed keys are parked.
fn does_all(url: &str) {
    add(url, &["good", "bad", "worse", "good"]);
    assert_eq!(status(url), [3, 0, 0, 0]);
    let script = "echo $1 $REQUEUE_ADDS $REQUEUE_ATTEMPT; [ $1 = good ]";
    let args = ["--until-empty", "--retries", "1", "--base-delay", "10ms", "-c", script];
    let ended = call("work", url, &args);
    assert_eq!((ended.code(), ended.count("given up")), (Some(1), 2), "{}", ended.stderr);
    let runs = ["bad 1 1", "bad 1 2", "good 2 1", "worse 1 1", "worse 1 2"];
    assert_eq!(ended.sorted(), runs);
    let parked = call("parked", url, &[]).text();
    let lines: Vec<Vec<_>> = parked.lines().map(|line| line.split('\t').collect()).collect();
    let told: Vec<_> = lines.iter().map(|line| (line[0], line[1], line[3])).collect();
    let why = "exit status: 1";
    assert_eq!(told, [("bad", "2", why), ("worse", "2", why)], "{parked}");
    assert_eq!(call("revive", url, &["bad"]).code(), Some(0));
    assert_eq!(call("cancel", url, &["worse"]).code(), Some(0));
    assert_eq!(call("cancel", url, &["worse"]).code(), Some(1));
    assert_eq!(status(url), [1, 0, 0, 0]);
    let ended = end(&mut requeue(&["run"], url, &["-c", "echo $1 $REQUEUE_ATTEMPT"]), "more\n");
    assert_eq!((ended.code(), ended.sorted()), (Some(0), vec!["bad 1".into(), "more 1".into()]));
    assert_eq!(status(url), [0; 4]);
}

/// If a worker is killed, another worker takes its key when the lease expires.
fn survives_a_worker(test: &str, url: &str) {
    let dir = directory(test);
    let mut gate = Gate::new(&dir);
    add(url, &["k"]);
    // Only the first worker may lose its lease, even on a slow machine.
    let args = ["--lease", "5s", "-c", "echo up; read _ <gate"];
    let mut first = Live::spawn(requeue(&["work"], url, &args).current_dir(&dir));
    first.wait_for("up");
    first.signal(Signal::KILL);
    // The command of the killed worker continues.
    gate.open(1);
    assert_eq!(first.end().status.signal(), Some(Signal::KILL.as_raw()));
    let args = ["--base-delay", "10ms", "-c", "echo $1 $REQUEUE_ATTEMPT"];
    let ended = end(&mut requeue(&["run"], url, &args), "");
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "k 2\n"), "{}", ended.stderr);
}

/// Two workers share a queue while their server stops and starts again. They may report the outage.
fn may_go_and_come_back(
    test: &str,
    url: &str,
    goes: impl FnOnce(),
    said: Option<&str>,
    is_there_again: impl FnOnce(),
) {
    let dir = directory(test);
    let script = "mkdir \"at-$1\" || echo overlap; rmdir \"at-$1\"; echo $1";
    // A server that is killed may forget completions. These keys run once more after their lease, which is long enough
    // for slow machines.
    let work = || requeue(&["work"], url, &["--lease", "10s", "-j2", "-c", script]);
    let mut both = [(); 2].map(|()| Live::spawn(work().current_dir(&dir)));
    for _ in 0..10 {
        add(url, &["a", "b", "c"]);
    }
    until(|| status(url) == [0; 4]);

    goes();
    if let Some(said) = said {
        both.iter_mut().for_each(|live| _ = live.wait_for_message(said));
    }
    is_there_again();
    if said.is_some() {
        let back = "store reachable again after ";
        both.iter_mut().for_each(|live| _ = live.wait_for_message(back));
    }
    let ended = end(&mut requeue(&["run"], url, &["-j1", "-c", "echo here $1"]), "last\n");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    until(|| status(url) == [0; 4]);
    both.iter().for_each(|live| live.signal(Signal::TERM));
    let all: String =
        both.map(Live::end).iter().map(|ended| ended.text() + &ended.stderr).collect();
    let all = all + &ended.text();
    assert!(!all.contains("overlap") && !all.contains("File exists"), "{all}");
    for key in ["a", "b", "c", "last"] {
        assert!(all.lines().any(|line| line.trim_start_matches("here ") == key), "{key}: {all}");
    }
}

const GONE: Option<&str> = Some("store unreachable: ");

/// An unreachable server is reported immediately. With `--wait`, the program retries.
fn is_waited_for(test: &str, url: &str, goes: impl FnOnce(), is_there_again: impl FnOnce()) {
    let dir = directory(test);
    goes();
    for subcommand in ["add", "status"] {
        let ended = call(subcommand, url, if subcommand == "add" { &["k"] } else { &[] });
        assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
        assert!(
            ended.stderr.trim_end().ends_with("; --wait retries until the store is ready"),
            "{}",
            ended.stderr
        );
    }
    let ended = call("add", url, &["--wait=0s", "k"]);
    assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("; gave up after "), "{}", ended.stderr);

    let mut adding = Live::spawn(&mut requeue(&["add"], url, &["--wait=1d", "waited"]));
    let work = ["--wait", "-c", "echo $1"];
    let mut working = Live::spawn(requeue(&["work"], url, &work).current_dir(&dir));
    for live in [&mut adding, &mut working] {
        let said = live.wait_for_message("store not ready: ");
        assert!(said.trim_end().ends_with("; retrying"), "{said}");
    }
    is_there_again();
    adding.wait_for_message("store ready after ");
    assert_eq!(adding.end().code(), Some(0));
    working.wait_for("waited");
    working.signal(Signal::TERM);
    let ended = working.end();
    let lines = ended.stderr.lines().filter(|line| line.contains("store not ready"));
    assert_eq!(lines.count(), 1, "{}", ended.stderr);
}

/// A permanent error ends the program immediately, even with `--wait`.
fn is_not_waited_for(url: &str, expected: &str) {
    let ended = call("add", url, &["--wait", "k"]);
    assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    assert!(
        !ended.stderr.contains("wr0ng") && !ended.stderr.contains("--wait"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_postgresql_server_that_starts_is_waited_for() {
    let Some(server) = Postgres::start() else { return };
    let url = server.database();
    init(&url);
    add(&url, &["first"]);
    is_not_waited_for(&server.tcp_url("127.0.0.1", "postgres:wr0ng", "postgres"), "password auth");
    is_not_waited_for(&server.url("postgres", "n0where"), "does not exist");
    is_waited_for("store_postgres_wait", &url, || server.stop(), || server.restart());
}

#[test]
fn a_redis_server_that_starts_is_waited_for() {
    let Some(server) = Redis::start() else { return };
    let url = server.url("");
    init(&url);
    add(&url, &["first"]);
    is_not_waited_for(&server.url("default:wr0ng@").replace("default", "nobody"), "uthentication");
    is_waited_for("store_redis_wait", &url, || server.kill(), || server.restart());
}

/// A role that may only add keys is enough for `requeue add`, but for no other subcommand.
#[test]
fn a_producer_adds_with_the_program() {
    let Some(server) = Postgres::start() else { return };
    let url = server.database();
    let (_, database) = url.rsplit_once('/').expect("it has one");
    init(&url);
    add(&url, &["--parked-add", "keep", "bad"]);
    assert_eq!(call("work", &url, &["--until-empty", "--retries", "0", "false"]).code(), Some(1));
    server.psql(database, include_str!("../../../requeue-store/src/engine/postgres/roles.sql"));
    let producer = server.url("producer", database);
    let added = |args: &[&str], input: &str, said: &str| {
        let ended = end(&mut requeue(&["add"], &producer, args), input);
        assert_eq!(ended.code(), Some(0), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(said), "{args:?}: {}", ended.stderr);
    };
    added(&["a", "b", "a"], "", "3 adds: 2 new, 1 coalesced in ");
    added(&["--after", "1h", "--priority", "high", "later"], "", "1 add: 1 new in ");
    added(&["bad"], "", "1 add: 1 left parked");
    added(&["--revive", "bad"], "", "1 add: 1 revived in ");
    added(&["--parked-add", "keep", "--wait=1s", "a"], "", "1 add: 1 coalesced in ");
    let many: String = (0..600).map(|n| format!("k{n}\n")).collect();
    added(&[], &many, "600 adds: 600 new in ");
    let records = "{\"key\":\"a\",\"merge\":\"exactly\"}\n{\"key\":\"c\",\"priority\":1}\n";
    added(&["--input", "json", "--summary", "json"], records, "\"new\":");
    assert_eq!(status(&url), [604, 1, 0, 0]);

    // The other settings are refused, and so are other queues and subcommands.
    for (subcommand, args, said) in [
        (
            "add",
            &["--parked-add", "revive", "a"][..],
            "its adds keep parked keys, and the option says revive",
        ),
        ("add", &["--queue", "other", "a"], "this role may not create it"),
        ("status", &[], "permission denied"),
        ("cancel", &["a"], "permission denied"),
        ("revive", &["a"], "permission denied"),
    ] {
        let ended = call(subcommand, &producer, args);
        assert!(ended.code() != Some(0), "{subcommand}");
        assert!(ended.stderr.contains(said), "{subcommand}: {}", ended.stderr);
    }
    let records = "{\"key\":\"a\",\"op\":\"cancel\"}\n";
    let ended = end(&mut requeue(&["add"], &producer, &["--input", "json"]), records);
    assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("permission denied"), "{}", ended.stderr);
    assert_eq!(status(&url), [604, 1, 0, 0]);
}

#[test]
fn another_server_at_the_address_is_named() {
    let Some(redis) = Redis::shared() else { return };
    let url = format!("postgres://me@127.0.0.1:{}/jobs", redis.port());
    let is = "answered, but not as a PostgreSQL server: it is a Redis server";
    is_not_waited_for(&url, &format!("127.0.0.1:{} {is}", redis.port()));
    is_not_waited_for(&redis.tls_url("localhost").replace("rediss", "redis"), "rediss://");
}

#[test]
fn a_postgresql_server_is_shared_and_may_go_and_come_back() {
    let Some(server) = Postgres::start() else { return };
    let url = server.database();
    init(&url);
    does_all(&url);
    let back = || server.restart();
    may_go_and_come_back("store_postgres", &url, || server.kill(), GONE, back);
}

#[test]
fn a_redis_server_is_shared_and_may_go_and_come_back() {
    let Some(server) = Redis::start() else { return };
    let url = server.url("");
    init(&url);
    does_all(&url);
    survives_a_worker("store_redis_worker", &url);
    may_go_and_come_back("store_redis", &url, || server.kill(), GONE, || server.restart());
}

#[test]
fn a_redis_cluster_is_shared_and_goes_on_without_one_of_its_masters() {
    let Some(cluster) = RedisCluster::start() else { return };
    let url = cluster.url();
    init(&url);
    does_all(&url);
    survives_a_worker("store_cluster_worker", &url);
    let back = || cluster.take_over(0);
    may_go_and_come_back("store_cluster", &url, || cluster.nodes()[0].kill(), None, back);
}

#[test]
fn a_redis_server_that_may_lose_keys_is_refused_or_warned_of() {
    let Some(server) = Redis::start() else { return };
    let url = server.url("");
    server.cli(&["config", "set", "appendonly", "no"]);
    let ended = end(&mut requeue(&["store", "init"], &url, &[]), "");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("appendonly is no").count(), 1, "{}", ended.stderr);
    server.cli(&["config", "set", "appendonly", "yes"]);
    let ended = call("add", &url, &["a", "b"]);
    assert!(!ended.stderr.contains("appendonly"), "{}", ended.stderr);

    // One key has lost its row, and the other its entry in the index.
    server.cli(&["hdel", "requeue:{default/0.0}:rows", "a"]);
    server.cli(&["zrem", "requeue:{default/0.0}:normal", "b"]);
    server.cli(&["zadd", "requeue:{default/0.0}:low", "1", "c"]);
    let ended = call("status", &url, &[]);
    assert!(ended.text().starts_with("ready       1, "), "{}{}", ended.text(), ended.stderr);
    let said = "the server has lost parts of the queue: keys were evicted or deleted; \
                check its maxmemory-policy restored=1 lost=2";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    let ended = call("work", &url, &["--until-empty", "echo"]);
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "b\n"), "{}", ended.stderr);

    server.cli(&["config", "set", "maxmemory", "1gb"]);
    server.cli(&["config", "set", "maxmemory-policy", "allkeys-lru"]);
    let ended = call("add", &url, &["a"]);
    assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("maxmemory-policy is allkeys-lru"), "{}", ended.stderr);
    add(&format!("{url}?eviction=accept"), &["a"]);
}
