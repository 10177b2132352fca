//! A server that only one test uses at a time.

use std::ops::Deref;

use tokio::sync::{Mutex, MutexGuard};

use crate::Server;
use crate::server::program;

/// A [`Server`] that only one test uses at a time: [`Server::exclusive`].
#[derive(Debug)]
pub struct Exclusive(MutexGuard<'static, Option<Server>>);

static SERVER: Mutex<Option<Server>> = Mutex::const_new(None);

impl Server {
    /// Returns a server to which a test may do harm. The tests of a binary take turns, and the
    /// first test starts the server. Returns `None` in the same cases as [`start`](Self::start). A
    /// test must repair the harm that it has done. After a test that panics, the next test gets a
    /// new server.
    ///
    /// # Panics
    /// Panics as [`start`](Self::start) does.
    pub async fn exclusive() -> Option<Exclusive> {
        program()?;
        let mut server = SERVER.lock().await;
        if server.is_none() {
            *server = Self::start().await;
        }
        server.is_some().then_some(Exclusive(server))
    }
}

impl Deref for Exclusive {
    type Target = Server;

    fn deref(&self) -> &Server {
        match self.0.as_ref() {
            Some(server) => server,
            None => unreachable!("only `drop` removes the server"),
        }
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.0 = None;
        }
    }
}
