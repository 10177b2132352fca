//! What a test that starts a server needs of its machine.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Ports that nobody listens on. They are below those that systems give to whoever connects: there,
/// a client that tries again and again could get the very port that a killed server is to listen
/// on again.
///
/// # Panics
/// When none is found.
pub fn free_ports<const N: usize>() -> [u16; N] {
    // It takes seconds until a server listens on what it was given.
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

/// Says in the list of what did not run that the test of this thread did not, and why. The
/// environment variable `REQUEUE_NOT_RUN` names it.
///
/// # Panics
/// When the list can't be written.
pub fn did_not_run(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    eprintln!("{test}: {why}");
    if let Some(list) = std::env::var_os("REQUEUE_NOT_RUN") {
        let opened = fs::OpenOptions::new().append(true).create(true).open(&list);
        let written = opened.and_then(|mut list| writeln!(list, "{test}: {why}"));
        written.unwrap_or_else(|err| panic!("{}: {err}", list.display()));
    }
}

/// What all tests of a program share. Each that gets none is one that did not run, for what is missing.
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
