//! The ports that test servers use, and the list of tests that did not run.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Returns ports on which no process listens. They are below the range that systems assign to
/// outgoing connections. In that range, a client that repeatedly reconnects could be assigned the
/// port of a killed server, which must listen there again.
///
/// # Panics
/// Panics if no free port is found.
pub fn free_ports<const N: usize>() -> [u16; N] {
    // The ports are remembered, because a server may take seconds until it listens on its port.
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let bound: [TcpListener; N] = std::array::from_fn(|_| {
        let free = (0..1000).find_map(|_| {
            let port = fastrand::u16(10_000..32_000);
            let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
            let bound = TcpListener::bind(("127.0.0.1", port)).ok();
            bound.filter(|_| given.insert(port))
        });
        free.unwrap_or_else(|| panic!("no free port was found on 127.0.0.1"))
    });
    bound.map(|listener| match listener.local_addr() {
        Ok(address) => address.port(),
        Err(err) => panic!("the port that was bound: {err}"),
    })
}

/// Returns the path of a program in `PATH`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file())
}

/// Records that the test of this thread did not run, and the reason. The environment variable
/// `REQUEUE_NOT_RUN` names the list of such tests.
///
/// # Panics
/// Panics if the list cannot be written.
pub fn did_not_run(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    eprintln!("{test}: {why}");
    if let Some(list) = std::env::var_os("REQUEUE_NOT_RUN") {
        let opened = fs::OpenOptions::new().append(true).create(true).open(&list);
        let written = opened.and_then(|mut list| writeln!(list, "{test}: {why}"));
        written.unwrap_or_else(|err| panic!("{}: {err}", list.display()));
    }
}

/// Returns the server that all tests of a program share. Without a server, each of these tests
/// counts as a test that did not run.
pub(crate) fn shared<T>(
    cell: &'static OnceLock<Option<T>>,
    start: fn() -> Option<T>,
    missing: &str,
) -> Option<&'static T> {
    let mut first = false;
    let shared = cell.get_or_init(|| {
        first = true;
        start()
    });
    if shared.is_none() && !first {
        did_not_run(missing);
    }
    shared.as_ref()
}
