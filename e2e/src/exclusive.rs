use std::ops::Deref;

use tokio::sync::{Mutex, MutexGuard};

use crate::Server;
use crate::server::program;

/// A [`Server`] that no other test uses meanwhile: [`Server::exclusive`].
#[derive(Debug)]
pub struct Exclusive(MutexGuard<'static, Option<Server>>);

static SERVER: Mutex<Option<Server>> = Mutex::const_new(None);

impl Server {
    /// A server to do harm to, which tests of a binary have in turn, and which is started by the
    /// first; `None` as for [`start`](Self::start). Who has done harm undoes it. After a test that
    /// panics, the next gets a new one.
    ///
    /// # Panics
    /// As [`start`](Self::start) does.
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
            None => unreachable!("it is taken away by `drop` alone"),
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
