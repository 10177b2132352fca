//! Queues in PostgreSQL, 14 or later: addresses, roles, and adds in transactions of the caller.
//!
//! # The address
//!
//! `postgres://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE&…`, as `libpq` has it; what is special in
//! a part is written `%40` for `@`, and a directory of Unix sockets `%2Frun%2Fpostgresql`. Several
//! hosts, between commas, are tried in order, and `target_session_attrs=read-write` takes the one
//! that may be written to.
//!
//! - The password may also come from `PGPASSWORD`, or from the file `passfile=FILE`, `PGPASSFILE` or
//!   `~/.pgpass`, which nobody else may be able to read. No error and no log has it.
//! - `sslmode=prefer`, the default, `require` and `disable` do not verify who the server is. With
//!   `verify-ca`, an authority that is trusted has signed the server's certificate. With `verify-full`, the
//!   certificate also names the host. Trusted are the authorities in `sslrootcert=FILE`, or those of the
//!   system; with these, `verify-ca` is `verify-full`.
//! - `sslrootcert=system` without `sslmode` implies `verify-full`, and `sslrootcert=FILE` implies
//!   `verify-ca`. A weaker `sslmode` beside it is refused, except that `require` with a file is `verify-ca`.
//! - A password is sent in clear text, or as an MD5 hash, only to a server that TLS has verified, or on
//!   loopback and Unix sockets. Elsewhere such a request ends the connection with an error. Passwords for
//!   `scram-sha-256`, the default of servers, are used on any connection: SCRAM does not give them away.
//! - `channel_binding=require` lets no server in the middle pass SCRAM messages on. It needs TLS, and is a
//!   proof of who the server is where no authority has signed its certificate.
//! - `connections=N`: so many at most, 12 unless said, and two besides, for leases and to be told
//!   of keys. The server sets what else a session is, by role or database; but for durable commits,
//!   which there are always, and the isolation level.
//! - `pooler=transaction`: see [below](#behind-a-pooler), as well as `listen=HOST:PORT`.
//!
//! # Behind a pooler
//!
//! A pooler such as pgbouncer with `pool_mode = transaction` gives each transaction another session of
//! the server. Prepared statements, settings and `LISTEN` do not last from one to the next. With
//! `pooler=transaction`, no statement is prepared, and each has a transaction of its own that begins with
//! its settings. [`Store::connect`](crate::Store::connect) refuses such a pooler without the option, if
//! two connections are given the same session.
//!
//! No notification passes the pooler. With `listen=HOST:PORT`, the address of the server itself, a
//! process that waits for keys has one connection there, with the same user, password and database.
//! Without it, the process [polls](crate::OpenOptions::poll), and logs that as a warning. Processes that
//! only add need no `listen`.
//!
//! # What is sure
//!
//! An add or a claim that was answered has been committed, as surely as the server keeps what it
//! has committed. The end of a hand-out is committed without waiting for the disk: a crash of the
//! server, not of its clients, may undo those of its last moment, which is as if their leases had
//! run out.
//!
//! If an asynchronous standby is promoted, adds and claims that it had not received are lost. Name a
//! standby in `synchronous_standby_names` to prevent that. Epochs rise in either case.
//!
//! # Adds in a transaction of one's own
//!
//! In Rust, [`add_in`] adds keys in a transaction of tokio-postgres 0.7. In all languages, the SQL
//! functions `requeue.add` and `requeue.add_many` add them in whatever transaction they are called.
//! Keys of a transaction that is rolled back were never added. When it is committed, workers are woken.
//! The queue has to be there: whoever opened it first, or `requeue.open`, made it.
//!
//! ```sql
//! select requeue.open('mail');                       -- hold => false: ReAdd::Replace
//!                                                    -- revive => false: ParkedAdd::Keep
//! select requeue.add('mail', 'alice');      -- new, coalesced, dirty, held, revived or parked
//! select requeue.add('mail', 'bob', '10 min', merge => 'latest', priority => 'high',
//!                    reasons => 5, revive => true);
//! select * from requeue.add_many('mail', array['carol', 'dave'], '10 min', priority => 'low');
//! ```
//!
//! Keys are `text` or `bytea`. `add_many` has the same options, for all of its keys, and returns one row:
//! how many keys got each answer, in the columns `new`, `coalesced`, `dirty`, `held`, `revived` and
//! `parked`. Name the type of an array that is a literal or an untyped parameter: `$1::text[]`.
//!
//! Until that transaction ends, the keys that it has added are locked: they are handed out to nobody,
//! and who adds one or ends its hand-out waits, for some 250 ms more than the transaction does, and for
//! longer where very many keys are locked. Others don't, whatever they came with, and leases are
//! renewed. Two transactions that add the same keys one by one in different orders deadlock, as two
//! that update rows do; `add_many` and `add_in` have one order.
//!
//! A delay counts from the add, not from the commit. A key is delivered once its transaction is committed,
//! however long that was open.
//!
//! A trigger feeds a queue with what happens to a table:
//!
//! ```sql
#![doc = include_str!("trigger.sql")]
//! ```
//!
//! # Roles
//!
//! [`Store::migrate`](crate::Store::migrate) makes all that there is, in the schema `requeue`, and
//! takes the right to create one in the database. The role that did owns it; others need no more
//! than this:
//!
//! ```sql
#![doc = include_str!("roles.sql")]
//! ```
//!
//! # Growing
//!
//! A queue's row per key is written three times: added, taken, ended. Autovacuum has to be on, and
//! is set to come often for this table. A transaction that stays open for hours, anywhere in the
//! database, keeps what has ended from being cleared away; claims look no further back than they
//! must, so that it costs space before it costs time.

mod adding;
mod address;
mod claims;
mod faults;
mod guard;
mod listening;
mod params;
mod passwords;
mod reaching;
mod schema;
mod sessions;
#[cfg(test)]
mod tests;
mod tls;
mod values;
mod verbs;
mod watermark;

use std::time::Duration;

use tokio::sync::{Semaphore, watch};

pub use self::adding::add_in;
pub(crate) use self::address::Address;
use self::claims::Claims;
use self::guard::Connector;
use self::listening::Listener;
use self::sessions::Sessions;
use crate::engine::{
    Answer, Ask, Claim, Claimed, Dropped, End, Engine, Finish, Place, Renewed, Settings,
};
use crate::types::add::{Added, Cancelled};
use crate::types::error::{ConnectError, EngineError, Kind};
use crate::types::inspect::{Counts, Entry, QueueInfo, State};
use crate::types::key::Key;

/// How often a scan goes through all that claims have passed, at most.
const WHOLE: Duration = Duration::from_secs(1);
/// How many connections go through all keys at once, to count them or for a page.
const LOOKS: usize = 2;

#[derive(Debug)]
pub(crate) struct Postgres {
    address: Address,
    tls: Tls,
    sessions: Sessions,
    /// For what may take long, so that it leaves connections to the others.
    looks: Semaphore,
    /// Leases are renewed even while all others wait for locks.
    renewals: Sessions,
    listener: Listener,
    claims: Claims,
}

/// It has no `Debug`.
struct Tls(Connector);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Postgres {
    pub(crate) async fn connect(address: Address) -> Result<Self, ConnectError> {
        let engine = Self::new(address, WHOLE)?;
        match engine.reach().await {
            Ok(()) => Ok(engine),
            Err(fault) => Err(ConnectError::of(engine.address.shown(), fault)),
        }
    }

    fn new(address: Address, whole: Duration) -> Result<Self, ConnectError> {
        let tls = Connector::new(tls::connector(&address.trust)?, address.negotiation);
        let sessions = Sessions::new(&address, tls.clone(), address.connections);
        let renewals = Sessions::new(&address, tls.clone(), 1);
        let listener = Listener::new();
        let listens = address.listen.is_some();
        let claims = Claims::new(sessions.clone(), listener.told(), listens, whole);
        let looks = Semaphore::new(LOOKS);
        Ok(Self { address, tls: Tls(tls), sessions, looks, renewals, listener, claims })
    }

    /// Released keys have their places back, which may be below where the next claim begins.
    fn note_released(&self, queue: &Place, ends: &[End]) {
        if ends.iter().any(|end| matches!(end.how, Finish::Unclaim(..))) {
            self.claims.scan_soon(queue);
        }
    }
}

/// Of a dropped queue, the server knows only the number.
fn named<T>(queue: &Place, answer: Result<T, EngineError>) -> Result<T, EngineError> {
    answer.map_err(|fault| match fault.kind {
        Kind::Dropped => EngineError::dropped(&queue.name),
        _ => fault,
    })
}

impl Engine for Postgres {
    fn migrate(&self) -> Answer<'_, ()> {
        Box::pin(schema::migrate(&self.sessions))
    }

    fn open<'a>(&'a self, name: &'a str, settings: Settings) -> Answer<'a, Place> {
        Box::pin(async move {
            schema::check(&self.sessions).await?;
            self.sessions.open(name, settings).await
        })
    }

    fn find<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Place>> {
        Box::pin(async move {
            schema::check(&self.sessions).await?;
            self.sessions.find(name).await
        })
    }

    fn drop_queue<'a>(&'a self, name: &'a str, keys_too: bool) -> Answer<'a, Dropped> {
        Box::pin(async move {
            schema::check(&self.sessions).await?;
            self.sessions.drop_queue(name, keys_too).await
        })
    }

    fn queues(&self) -> Answer<'_, Vec<QueueInfo>> {
        Box::pin(async {
            schema::check(&self.sessions).await?;
            self.sessions.queues().await
        })
    }

    fn add<'a>(&'a self, queue: &'a Place, asks: Vec<Ask>) -> Answer<'a, Vec<Added>> {
        Box::pin(async move { named(queue, self.sessions.add(queue, &asks).await) })
    }

    fn add_free<'a>(&'a self, queue: &'a Place, asks: Vec<Ask>) -> Answer<'a, Vec<Option<Added>>> {
        Box::pin(async move { named(queue, self.sessions.add_free(queue, &asks).await) })
    }

    fn claim<'a>(&'a self, queue: &'a Place, claim: Claim) -> Answer<'a, Claimed> {
        Box::pin(async move { named(queue, self.claims.claim(queue, &claim).await) })
    }

    fn finish<'a>(&'a self, queue: &'a Place, ends: Vec<End>) -> Answer<'a, Vec<bool>> {
        Box::pin(async move {
            let held = self.sessions.finish(queue, &ends).await;
            self.note_released(queue, &ends);
            named(queue, held)
        })
    }

    fn finish_free<'a>(
        &'a self,
        queue: &'a Place,
        ends: Vec<End>,
    ) -> Answer<'a, Vec<Option<bool>>> {
        Box::pin(async move {
            let held = self.sessions.finish_free(queue, &ends).await;
            self.note_released(queue, &ends);
            named(queue, held)
        })
    }

    fn renew<'a>(
        &'a self,
        queue: &'a Place,
        held: Vec<(Key, i64)>,
        lease: Duration,
    ) -> Answer<'a, Vec<Renewed>> {
        Box::pin(async move { named(queue, self.renewals.renew(queue, &held, lease).await) })
    }

    fn cancel<'a>(
        &'a self,
        queue: &'a Place,
        keys: Vec<Key>,
        only: Option<State>,
    ) -> Answer<'a, Vec<Option<Cancelled>>> {
        Box::pin(async move { named(queue, self.sessions.cancel(queue, &keys, only).await) })
    }

    fn revive<'a>(&'a self, queue: &'a Place, keys: Vec<Key>) -> Answer<'a, Vec<Option<bool>>> {
        Box::pin(async move { named(queue, self.sessions.revive(queue, &keys).await) })
    }

    fn look_up<'a>(&'a self, queue: &'a Place, key: &'a Key) -> Answer<'a, Option<Entry>> {
        Box::pin(async move { named(queue, self.sessions.look_up(queue, key).await) })
    }

    fn page<'a>(
        &'a self,
        queue: &'a Place,
        state: Option<State>,
        after: Option<&'a Key>,
        limit: usize,
    ) -> Answer<'a, Vec<Entry>> {
        Box::pin(async move {
            let _turn = self.looks.acquire().await;
            named(queue, self.sessions.page(queue, state, after, limit).await)
        })
    }

    fn counts<'a>(&'a self, queue: &'a Place) -> Answer<'a, Counts> {
        Box::pin(async move {
            let _turn = self.looks.acquire().await;
            named(queue, self.sessions.counts(queue).await)
        })
    }

    fn is_idle<'a>(&'a self, queue: &'a Place) -> Answer<'a, bool> {
        Box::pin(async move { named(queue, self.sessions.is_idle(queue).await) })
    }

    fn wakes(&self, queue: &Place) -> watch::Receiver<u64> {
        self.listener.wakes(queue.id, &self.address, &self.tls.0)
    }

    fn breadth(&self) -> usize {
        // More are smaller ones, which take the server longer.
        2
    }
}
