//! Tests the contents of the files. Also tests operations while another process has locked the file, or the disk is
//! full.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use super::super::place::is_lasting;
use super::super::thread::fault;
use super::*;
use crate::engine::Finish;
use crate::types::error::{Kind, chain};

#[tokio::test]
async fn a_file_is_complete_without_its_log_when_the_store_is_closed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let log = dir.path().join("q-wal");
    let (one, other) = (store(&at(&dir)).await, store(&at(&dir)).await);
    let queue = one.queue("q").open().await.expect("the queue opens");
    queue.add_all(["a", "b"]).await.expect("added");
    assert_eq!(queue.counts().await.expect("counted").ready, 2);
    one.close().await;
    assert!(log.exists(), "the other store has the file open");
    let error = queue.add("c").await.expect_err("the store is closed");
    assert!(chain(&error).ends_with("q: the store is closed"), "{}", chain(&error));
    assert!(!error.may_have_happened());
    queue.counts().await.expect_err("the store is closed");
    one.close().await;

    let queue = other.queue("q").open().await.expect("the queue opens");
    queue.add("d").await.expect("added");
    let file = rusqlite::Connection::open(at(&dir)).expect("the file opens");
    let beside = dir.path().join("beside").display().to_string();
    file.execute("vacuum into ?1", [&beside]).expect("the file is copied");
    drop(file);
    other.close().await;
    assert!(!log.exists(), "no process has the file open");
    fs::copy(at(&dir), dir.path().join("copy")).expect("the file is copied");
    for copy in ["copy", "beside"] {
        let copy = store(&dir.path().join(copy)).await;
        let queue = copy.queue("q").must_exist().open().await.expect("the queue exists");
        assert_eq!(queue.counts().await.expect("counted").ready, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_locked_is_waited_for_as_long_as_an_add_may_take() {
    let fixture = Fixture::new().await;
    let engine = &fixture.engine;
    let impatient = |at: &Work<'_>| at.connection.busy_timeout(Duration::ZERO);
    engine.thread.call(impatient).await.expect("the setting is changed");
    let other = rusqlite::Connection::open(fixture._dir.path().join("q")).expect("the file opens");
    let lock =
        |operation: &str| other.execute_batch(operation).expect("the lock is free or held here");

    lock("begin immediate");
    let since = Instant::now();
    let fault =
        engine.open_queue("q", ReaddPolicy::Replace.into()).await.expect_err("the file is locked");
    assert!(since.elapsed() >= Duration::from_secs(30));
    let said = fault.source.to_string();
    assert!(said.ends_with("q: another process holds the lock on the file"), "{said}");
    // If the schema is up to date, a migration does not write.
    engine.migrate_schema().await.expect("the schema exists");

    let unlocked = async {
        sleep(Duration::from_secs(29)).await;
        lock("rollback");
    };
    let (opened, ()) = tokio::join!(engine.open_queue("q", ReaddPolicy::Replace.into()), unlocked);
    let place = opened.expect("the file was locked for less than 30 s");

    // A change whose caller does not retry also waits for the lock.
    engine.add_keys(&place, long(1)).await.expect("added");
    lock("begin immediate");
    let key = long(1).remove(0).key;
    let keys = || vec![key.clone()];
    let unlocked = async {
        sleep(Duration::from_secs(29)).await;
        lock("rollback");
    };
    let (cancelled, running, revived, ready, paused, ()) = tokio::join!(
        engine.cancel_keys(&place, keys(), None),
        engine.cancel_running(&place, &key),
        engine.make_ready(&place, keys(), crate::State::Parked),
        engine.make_ready(&place, keys(), crate::State::Waiting),
        engine.set_paused(&place, true),
        unlocked
    );
    assert!(cancelled.expect("cancelled")[0] == Some(true));
    assert_eq!(running.expect("answered"), CancelledRun::NotInFlight);
    revived.expect("answered");
    ready.expect("answered");
    paused.expect("paused");
}

/// A disk may stay full for days. Two attempts are needed, because the first one may have released the reserve for the
/// second one.
#[tokio::test(start_paused = true)]
async fn only_a_locked_file_is_waited_for() {
    use rusqlite::ffi::{self, Error};
    use std::sync::atomic::AtomicU32;

    for (code, is_lock, attempts) in [
        (ffi::SQLITE_BUSY, true, 1),
        (ffi::SQLITE_LOCKED, true, 1),
        (ffi::SQLITE_FULL, false, 2),
        (ffi::SQLITE_IOERR_WRITE, false, 2),
        (ffi::SQLITE_NOMEM, false, 2),
        (ffi::SQLITE_CORRUPT, false, 1),
    ] {
        let made = AtomicU32::new(0);
        let attempt = || -> crate::tests::BoxAnswer<'_, ()> {
            made.fetch_add(1, Ordering::SeqCst);
            let error = rusqlite::Error::SqliteFailure(Error::new(code), None);
            Box::pin(std::future::ready(Err(fault(Path::new("q"), &error))))
        };
        let since = Instant::now();
        retry_patiently(attempt).await.expect_err("each attempt fails");
        assert_eq!(since.elapsed() >= Duration::from_secs(30), is_lock, "code {code}");
        let made = made.into_inner();
        assert!(made == attempts || (is_lock && made > 1), "code {code}: {made} attempts");
    }
}

#[tokio::test]
async fn without_a_reserve_adds_use_only_what_is_free_in_the_file() {
    let fixture = Fixture::new().await;
    let (engine, reserve) = (&fixture.engine, fixture._dir.path().join("q-reserve"));
    let place = engine.open_queue("q", ReaddPolicy::Replace.into()).await.expect("the queue opens");
    assert_eq!(fs::metadata(&reserve).expect("the file exists").len(), 256 << 10);
    for n in 0..20 {
        engine.add_keys(&place, long(n)).await.expect("added");
    }
    assert_eq!(work(engine, &place).await, 20);
    fs::remove_file(&reserve).expect("the file is removed");
    // Because of this directory, no reserve can be created, as on a full disk.
    fs::create_dir(&reserve).expect("the directory is created");
    let (added, fault) = add_until_full(engine, &place).await;
    assert_eq!(fault.kind, Kind::Unable);
    let said = fault.source.to_string();
    assert!(said.contains("q: the disk is full; free some space, or let workers"), "{said}");
    assert!(added > 10, "{added}: the pages of completed keys are free within the file");
    assert_eq!(work(engine, &place).await, added);
    let (again, _) = add_until_full(engine, &place).await;
    assert!(again > 10, "{again}");
    fs::remove_dir(&reserve).expect("the file is removed");
    engine.add_keys(&place, long(u64::MAX)).await.expect("there is space again");
    assert!(fs::metadata(&reserve).expect("the file exists").len() >= 256 << 10);
    assert_eq!(work(engine, &place).await, again + 1);
}

fn long(n: u64) -> Vec<Ask> {
    let key = Key::from([&n.to_be_bytes()[..], &[b'k'; 1500]].concat());
    vec![Ask::new(key, crate::Add::now())]
}

/// Adds keys until the disk is full. Returns the number of acknowledged keys and the error.
async fn add_until_full(engine: &Sqlite, place: &Place) -> (u64, EngineError) {
    let mut added = 0;
    loop {
        match engine.add_keys(place, long(added)).await {
            Ok(_) => added += 1,
            Err(fault) => return (added, fault),
        }
    }
}

/// Completes keys until none is left. Tries again if the disk is full. Returns the number of completed keys.
async fn work(engine: &Sqlite, place: &Place) -> u64 {
    let backoff = crate::engine::Backoff { base: Duration::ZERO, cap: Duration::ZERO, share: 1.0 };
    let expired = crate::engine::Failing { backoff, max_failures: None };
    let claim = Claim { max: 16, oldest: 0, lease: LEASE, expired, poll: LEASE };
    let (mut done, mut failed) = (0, 0);
    let mut retry = |fault: EngineError| {
        failed += 1;
        assert!(failed < 10, "{}", fault.source);
    };
    loop {
        let items = match engine.claim_keys(place, claim).await {
            Ok(claimed) if claimed.items.is_empty() => break,
            Ok(claimed) => claimed.items,
            Err(fault) => {
                retry(fault);
                continue;
            }
        };
        let end = |out| End { key: out, epoch: 0, how: Finish::Succeed };
        let ends: Vec<_> =
            items.into_iter().map(|out| End { epoch: out.epoch, ..end(out.key) }).collect();
        loop {
            match engine.finish_deliveries(place, ends.clone()).await {
                Ok(ours) => {
                    done += ours.into_iter().filter(|&is_ours| is_ours).count() as u64;
                    break;
                }
                Err(fault) => retry(fault),
            }
        }
    }
    assert_eq!(engine.count_keys(place).await.expect("counted"), StateCounts::default());
    done
}

/// The test runs in a separate process, because only that process may see the mounted disk.
#[test]
fn a_queue_on_a_full_disk_drains_and_takes_keys_again() {
    const DISK: &str = "REQUEUE_TEST_DISK";
    const TEST: &str =
        "engine::sqlite::tests::file::a_queue_on_a_full_disk_drains_and_takes_keys_again";
    const MOUNTED: &str = "mount -t tmpfs -o size=48m none \"$0\" && exec \"$@\"";

    if let Some(disk) = std::env::var_os(DISK) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        return runtime.expect("the runtime is built").block_on(fill_and_drain(Path::new(&disk)));
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let run = |program: &Path, args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", MOUNTED]);
        command.arg(dir.path()).arg(program).args(args).env(DISK, dir.path()).output()
    };
    if !run(Path::new("true"), &[]).is_ok_and(|done| done.status.success()) {
        requeue_servers::did_not_run("no file system can be mounted here: unshare --user --mount");
        return;
    }
    let program = std::env::current_exe().expect("the program has a path");
    let done = run(&program, &["--exact", TEST, "--nocapture"]).expect("the program runs");
    let said = [done.stdout, done.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(done.status.success() && said[0].contains("1 passed"), "{}{}", said[0], said[1]);
}

async fn fill_and_drain(disk: &Path) {
    let file = disk.join("q");
    let open = || async {
        let engine = Sqlite::open(&file, Synchronous::Normal).expect("the file opens");
        engine.migrate_schema().await.expect("the schema exists");
        let place =
            engine.open_queue("q", ReaddPolicy::Replace.into()).await.expect("the queue opens");
        (engine, place)
    };
    let mut filler = File::create(disk.join("filler")).expect("the file is created");
    filler.write_all(&[0; 24 << 20]).expect("there is space");
    let ((adder, place), (worker, same)) = (open().await, open().await);
    let (mut added, fault) = add_until_full(&adder, &place).await;
    assert!(added > 1000, "{added}");
    assert!(fault.source.to_string().contains("the disk is full"), "{}", fault.source);
    // Another program fills the remaining space.
    while filler.write_all(&[0; 256]).is_ok() {}
    assert_eq!(worker.count_keys(&same).await.expect("counted").ready, added);
    assert_eq!(work(&worker, &same).await, added);

    // The disk is full, but the pages of the completed keys are free within the file.
    (added, _) = add_until_full(&adder, &place).await;
    assert!(added > 1000, "{added}");
    assert_eq!(work(&worker, &same).await, added);
    adder.add_keys(&place, long(0)).await.expect("added");
    // A process that opens the file now can also complete keys.
    drop((adder, worker));
    let (late, place) = open().await;
    assert_eq!(work(&late, &place).await, 1);
    drop(filler);
    fs::remove_file(disk.join("filler")).expect("the file is removed");
    let reserve = disk.join("q-reserve");
    assert!(!reserve.exists());
    late.add_keys(&place, long(0)).await.expect("there is space again");
    assert!(reserve.exists());
}

#[cfg(unix)]
#[tokio::test]
async fn new_files_are_readable_by_their_owner_alone_and_old_ones_keep_their_mode() {
    use std::os::unix::fs::PermissionsExt;

    let mode =
        |path: &Path| fs::metadata(path).expect("the file exists").permissions().mode() & 0o777;
    for (old, expected) in [(None, 0o600), (Some(0o640), 0o640), (Some(0o604), 0o604)] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        if let Some(mode) = old {
            fs::write(at(&dir), "").expect("the file is written");
            fs::set_permissions(at(&dir), fs::Permissions::from_mode(mode))
                .expect("the mode is changed");
        }
        let store = store(&at(&dir)).await;
        let queue = store.queue("q").open().await.expect("the queue opens");
        queue.add("a").await.expect("added");
        for suffix in ["", "-wal", "-shm", "-reserve"] {
            let path = dir.path().join(format!("q{suffix}"));
            assert_eq!(mode(&path), expected, "{suffix:?} of {old:?}");
        }
        store.close().await;
    }
}

/// Runs a test in a separate process, because the test depends on the directory or the user of its process. Returns
/// true in that process.
#[cfg(unix)]
fn in_a_process(test: &str, set_up: impl FnOnce(&mut Command)) -> bool {
    const CHILD: &str = "REQUEUE_TEST_CHILD";

    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let test = format!("engine::sqlite::tests::file::{test}");
    let program = std::env::current_exe().expect("the program has a path");
    let mut command = Command::new(program);
    command.args(["--exact", &test, "--nocapture"]).env(CHILD, "1");
    set_up(&mut command);
    match command.output() {
        Ok(done) => {
            let said =
                [done.stdout, done.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
            let passed = done.status.success() && said[0].contains("1 passed");
            assert!(passed, "{}{}", said[0], said[1]);
        }
        Err(error) => requeue_servers::did_not_run(&format!("{test}: {error}")),
    }
    false
}

#[cfg(unix)]
#[test]
fn a_link_to_the_current_directory_is_no_temporary_database() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let is_child =
        in_a_process("a_link_to_the_current_directory_is_no_temporary_database", |command| {
            let links = [("one", "."), ("two", "./"), ("three", "one")];
            for (link, to) in links {
                std::os::unix::fs::symlink(to, dir.path().join(link)).expect("created");
            }
            command.current_dir(dir.path());
        });
    for path in ["one", "two", "three", "./three"].iter().filter(|_| is_child) {
        let error = Sqlite::open(Path::new(path), Synchronous::Normal).expect_err("refused");
        let said = error.source.to_string();
        assert!(said.starts_with(&format!("{path}: it is a directory; name a file")), "{said}");
    }
}

/// Permissions do not restrict root, so root runs this test as another user.
#[cfg(unix)]
#[tokio::test]
async fn a_directory_that_forbids_the_log_is_named() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    let as_another = |command: &mut Command| {
        if rustix::process::geteuid().is_root() {
            command.uid(65534).gid(65534).current_dir("/");
        }
    };
    if !in_a_process("a_directory_that_forbids_the_log_is_named", as_another) {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    store(&at(&dir)).await.close().await;
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the mode is changed");
    };
    let refused = async || {
        let error = crate::Store::connect(&format!("sqlite:{}", at(&dir).display())).await;
        let error = error.expect_err("the file cannot be written");
        assert_eq!(error.kind(), crate::ErrorKind::Refused, "{}", chain(&error));
        chain(&error)
    };
    set_mode(dir.path(), 0o555);
    let expected = format!("q: this process may not write {}: ", dir.path().display());
    let said = refused().await;
    assert!(said.contains(&expected), "{said}");
    set_mode(dir.path(), 0o755);
    set_mode(&at(&dir), 0o000);
    let expected = format!("q: this process may not write {}: ", at(&dir).display());
    let said = refused().await;
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn an_error_that_may_disappear_is_not_final() {
    use std::io::{Error, ErrorKind};

    for kind in [ErrorKind::PermissionDenied, ErrorKind::NotADirectory] {
        assert!(is_lasting(kind), "{kind}");
    }
    for kind in [ErrorKind::StaleNetworkFileHandle, ErrorKind::TimedOut, ErrorKind::HostUnreachable]
    {
        assert!(!is_lasting(kind), "{kind}");
    }
    #[cfg(unix)]
    assert!(!is_lasting(Error::from(rustix::io::Errno::IO).kind()));
    assert!(!is_lasting(Error::other("unknown").kind()));
}

/// If several users can write to a directory, another user may have created the link.
#[cfg(unix)]
#[tokio::test]
async fn a_link_in_the_place_of_a_file_beside_the_queue_leads_nowhere() {
    use std::os::unix::fs::symlink;

    for suffix in ["-reserve", "-wal", "-shm", "-journal"] {
        for exists in [true, false] {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let victim = dir.path().join("victim");
            if exists {
                fs::write(&victim, "precious").expect("the file is written");
            }
            symlink(&victim, dir.path().join(format!("q{suffix}"))).expect("the link is created");
            if suffix == "-reserve" {
                let store = store(&at(&dir)).await;
                drop(store.queue("q").open().await);
            } else {
                // SQLite itself opens these files. The test uses SQLite directly, because the store would retry for 30
                // s.
                let mode = if suffix == "-journal" { "delete" } else { "wal" };
                let sql = format!(
                    "pragma journal_mode = {mode}; create table t (a); insert into t values (1)"
                );
                let connection = rusqlite::Connection::open(at(&dir)).expect("the file opens");
                let _ = connection.execute_batch(&sql);
            }
            let found = fs::read(&victim).ok();
            assert_eq!(found.as_deref(), exists.then_some(&b"precious"[..]), "{suffix}");
        }
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_of_another_user_to_the_queue_is_not_followed() {
    use std::os::unix::fs::{lchown, symlink};

    let dir = tempfile::tempdir().expect("a temporary directory");
    let [victim, none] = ["victim", "none"].map(|name| dir.path().join(name));
    // SQLite treats an empty file as a new database.
    fs::write(&victim, "").expect("the file is written");
    for to in [&victim, &none] {
        let [link, ours] = ["link", "ours"].map(|name| dir.path().join(name));
        let _ = (fs::remove_file(&link), fs::remove_file(&ours));
        symlink(to, &link).expect("the link is created");
        symlink("link", &ours).expect("the link is created");
        // Only root can change the owner of a link, so the rest of the test runs only for root.
        if lchown(&link, Some(65534), None).is_err() {
            return;
        }
        for path in [link, ours] {
            let error = crate::Store::connect(&format!("sqlite:{}", path.display())).await;
            let error = chain(&error.expect_err("the server refuses it"));
            assert!(error.contains("a symbolic link of another user (uid 65534)"), "{error}");
        }
        assert!(fs::read(&victim).expect("the file is read").is_empty() && !none.exists());
    }
}

/// Only root can create files that belong to other users.
#[cfg(unix)]
#[tokio::test]
async fn a_directory_of_the_queue_that_is_a_link_of_another_user_is_not_followed() {
    use std::os::unix::fs::{lchown, symlink};

    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("real/inner")).expect("the directory is created");
    for link in ["link", "ours"] {
        symlink("real", at(link)).expect("the link is created");
    }
    symlink("ours/inner", at("short")).expect("the link is created");
    // Each of these paths has links of this user, and leads to the same file. All processes find its reserve.
    for path in ["ours/inner/q", "short/q", "short/../inner/q"] {
        let store = store(&at(path)).await;
        store.queue("q").open().await.expect("the queue opens");
        store.close().await;
    }
    assert!(at("real/inner/q-reserve").exists());
    if lchown(at("link"), Some(65534), None).is_err() {
        return;
    }
    for path in ["link/p", "link/inner/p", "real/../link/p"] {
        let error = crate::Store::connect(&format!("sqlite:{}", at(path).display())).await;
        let error = chain(&error.expect_err("the link is refused"));
        assert!(error.contains("a symbolic link of another user (uid 65534)"), "{error}");
    }
    assert!(!at("real/p").exists() && !at("real/inner/p").exists());
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_another_user_planted_for_the_queue_receives_no_key() {
    use std::os::unix::fs::{PermissionsExt, chown};

    let dir = tempfile::tempdir().expect("a temporary directory");
    let shared = dir.path().join("shared");
    let at = |name: &str| shared.join(name);
    fs::create_dir_all(at("dir")).expect("the directory is created");
    let connect = async |path: &str| {
        let error = crate::Store::connect(&format!("sqlite:{}", at(path).display())).await;
        chain(&error.map(drop).expect_err("the file is refused"))
    };
    let made = Command::new("mkfifo").arg(at("fifo")).status().expect("mkfifo runs");
    assert!(made.success());
    assert!(connect("fifo").await.contains("not a regular file"));
    if chown(at("dir"), Some(65534), None).is_err() {
        return;
    }
    let set_mode = |mode| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(&shared, mode).expect("the mode is changed");
    };
    for mode in [0o777, 0o1770, 0o1777] {
        set_mode(mode);
        let error = connect("dir/q").await;
        let why =
            "it belongs to another user (uid 65534), and others can write to its directory; choose";
        assert!(error.contains(why), "{mode:o}: {error}");
    }
    for suffix in ["", "-wal", "-shm", "-journal", "-reserve"] {
        let planted = at(&format!("q{suffix}"));
        fs::write(&planted, "").expect("the file is written");
        chown(&planted, Some(65534), None).expect("root changes owners");
        let error = connect("q").await;
        assert!(error.contains(&format!("q{suffix}: it belongs to another user")), "{error}");
        fs::remove_file(&planted).expect("the file is removed");
        assert_eq!(fs::read_dir(&shared).expect("listed").count(), 2, "nothing is written");
    }
    // A directory in which all users can create files is permitted.
    store(&at("q")).await.close().await;
    // In a directory of a group, files of other users are also permitted.
    set_mode(0o775);
    store(&at("dir/q")).await.close().await;
}
