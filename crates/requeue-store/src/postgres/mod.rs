//! Queues in PostgreSQL, 14 or later: what there is to know of it. There is nothing here to call.
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
//! - `sslmode=prefer`, which is so unless said, `require` and `disable`; with `verify-ca` the
//!   server's certificate is by an authority that is trusted, and with `verify-full` it is also its
//!   host's. Trusted are those in `sslrootcert=FILE`, or those that the system trusts; by these,
//!   `verify-ca` is `verify-full`.
//! - `connections=N`: so many at most, 12 unless said, and two besides, for leases and to be told
//!   of keys. The server sets what else a session is, by role or database; but for durable commits,
//!   which there are always, and the isolation level.
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
//! `requeue.add` and `requeue.add_many` add keys in whatever transaction they are called in, from
//! whatever language: what is rolled back was never added, and workers are woken when it is
//! committed. The queue has to be there, by somebody who opened it, or by `requeue.open`.
//!
//! ```sql
//! select requeue.open('mail');                       -- hold => true: EarlyAdd::Hold
//!                                                    -- revive => false: ParkedAdd::Keep
//! select requeue.add('mail', 'alice');      -- new, coalesced, dirty, held, revived or parked
//! select requeue.add('mail', 'bob', '10 min', merge => 'latest', priority => 'high',
//!                    reasons => 5, revive => true);
//! select requeue.add_many('mail', array['carol', 'dave']);         -- how many are new
//! ```
//!
//! Until that transaction ends, the keys that it has added are locked: they are handed out to nobody,
//! and who adds one or ends its hand-out waits, for some 250 ms more than the transaction does, and for
//! longer where very many keys are locked. Others don't, whatever they came with, and leases are
//! renewed. Two transactions that add the same keys one by one in different orders deadlock, as two
//! that update rows do; `add_many` has one order.
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

mod address;
mod faults;
mod listening;
mod passwords;
mod reaching;
mod schema;
mod sessions;
#[cfg(test)]
mod tests;
mod tls;
mod values;
mod verbs;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use tokio_postgres_rustls::MakeRustlsConnect;

pub(crate) use self::address::Address;
use self::listening::Listener;
use self::sessions::Sessions;
use self::verbs::Lows;
use crate::add::{Added, Cancelled};
use crate::engine::{Answer, Ask, Claim, Claimed, End, Engine, Place, Renewed, Settings};
use crate::error::{ConnectError, Fault};
use crate::inspect::{Counts, Entry, QueueInfo, State};
use crate::key::Key;
use crate::time::Micros;

/// How often a claim looks at all there is, at most.
const WHOLE: Duration = Duration::from_secs(1);
/// How many connections go through all keys at once, to count them or for a page.
const LOOKS: usize = 2;
/// For how long who waits need not say so again: see `requeue.wait`.
const SAID: Duration = Duration::from_secs(4);

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
    claims: Mutex<HashMap<i64, Claims>>,
    whole: Duration,
}

/// It has no `Debug`.
struct Tls(MakeRustlsConnect);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// What is known for the next claim of a queue.
#[derive(Clone, Copy, Debug)]
struct Claims {
    lows: Lows,
    /// When one looks at all there is: that takes longer the more was handed out while
    /// a transaction is open elsewhere.
    whole_at: Instant,
    /// Before when who adds knows that somebody here looks again by themselves.
    looks_until: Instant,
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
        let tls = tls::connector(&address.trust)?;
        let sessions = Sessions::new(&address, tls.clone(), address.connections);
        let renewals = Sessions::new(&address, tls.clone(), 1);
        let listener = Listener::new();
        let claims = Mutex::default();
        let looks = Semaphore::new(LOOKS);
        Ok(Self { address, tls: Tls(tls), sessions, looks, renewals, listener, claims, whole })
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<i64, Claims>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn claim_once(&self, queue: &Place, claim: &Claim) -> Result<Claimed, Fault> {
        let began = Instant::now();
        let first = Claims { lows: [Micros::MIN; 4], whole_at: began, looks_until: began };
        let known = *self.claims().entry(queue.id).or_insert(first);
        let is_whole = self.whole.is_zero() || known.whole_at <= began;
        let lows = if is_whole { [Micros::MIN; 4] } else { known.lows };
        let (claimed, lows) = self.sessions.claim(queue, claim, &lows).await?;
        if let Some(known) = self.claims().get_mut(&queue.id) {
            known.lows = lows;
            if is_whole {
                // A twentieth of the time at most goes into it.
                let took = began.elapsed();
                known.whole_at = began + took + self.whole.max(took * 20);
            }
        }
        Ok(claimed)
    }

    /// Says that somebody waits, who asks again after `poll`. Whether that was not known.
    async fn wait(&self, queue: &Place, poll: Duration) -> Result<bool, Fault> {
        let now = Instant::now();
        let said = self.claims().get(&queue.id).map(|known| known.looks_until);
        if said.is_some_and(|until| now + poll <= until) {
            return Ok(false);
        }
        self.sessions.wait(queue, poll + SAID).await?;
        if let Some(known) = self.claims().get_mut(&queue.id) {
            known.looks_until = now + poll + SAID;
        }
        Ok(true)
    }
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

    fn queues(&self) -> Answer<'_, Vec<QueueInfo>> {
        Box::pin(async {
            schema::check(&self.sessions).await?;
            self.sessions.queues().await
        })
    }

    fn add<'a>(&'a self, queue: &'a Place, asks: Vec<Ask>) -> Answer<'a, Vec<Added>> {
        Box::pin(async move { self.sessions.add(queue, &asks).await })
    }

    fn add_free<'a>(&'a self, queue: &'a Place, asks: Vec<Ask>) -> Answer<'a, Vec<Option<Added>>> {
        Box::pin(async move { self.sessions.add_free(queue, &asks).await })
    }

    fn claim<'a>(&'a self, queue: &'a Place, claim: Claim) -> Answer<'a, Claimed> {
        Box::pin(async move {
            let claimed = self.claim_once(queue, &claim).await?;
            if !claimed.items.is_empty() || !self.wait(queue, claim.poll).await? {
                return Ok(claimed);
            }
            // Nobody was told of what came before. Of leases only one of the two may know.
            let again = self.claim_once(queue, &claim).await?;
            let next = claimed.next.into_iter().chain(again.next).min();
            Ok(Claimed { next, ..again })
        })
    }

    fn finish<'a>(&'a self, queue: &'a Place, ends: Vec<End>) -> Answer<'a, Vec<bool>> {
        Box::pin(async move { self.sessions.finish(queue, &ends).await })
    }

    fn finish_free<'a>(
        &'a self,
        queue: &'a Place,
        ends: Vec<End>,
    ) -> Answer<'a, Vec<Option<bool>>> {
        Box::pin(async move { self.sessions.finish_free(queue, &ends).await })
    }

    fn renew<'a>(
        &'a self,
        queue: &'a Place,
        held: Vec<(Key, i64)>,
        lease: Duration,
    ) -> Answer<'a, Vec<Renewed>> {
        Box::pin(async move { self.renewals.renew(queue, &held, lease).await })
    }

    fn cancel<'a>(
        &'a self,
        queue: &'a Place,
        keys: Vec<Key>,
        only: Option<State>,
    ) -> Answer<'a, Vec<Option<Cancelled>>> {
        Box::pin(async move { self.sessions.cancel(queue, &keys, only).await })
    }

    fn revive<'a>(&'a self, queue: &'a Place, keys: Vec<Key>) -> Answer<'a, Vec<Option<bool>>> {
        Box::pin(async move { self.sessions.revive(queue, &keys).await })
    }

    fn look_up<'a>(&'a self, queue: &'a Place, key: &'a Key) -> Answer<'a, Option<Entry>> {
        Box::pin(self.sessions.look_up(queue, key))
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
            self.sessions.page(queue, state, after, limit).await
        })
    }

    fn counts<'a>(&'a self, queue: &'a Place) -> Answer<'a, Counts> {
        Box::pin(async move {
            let _turn = self.looks.acquire().await;
            self.sessions.counts(queue).await
        })
    }

    fn is_idle<'a>(&'a self, queue: &'a Place) -> Answer<'a, bool> {
        Box::pin(self.sessions.is_idle(queue))
    }

    fn wakes(&self, queue: &Place) -> watch::Receiver<u64> {
        self.listener.wakes(queue.id, &self.address, &self.tls.0)
    }

    fn breadth(&self) -> usize {
        // More are smaller ones, which take the server longer.
        2
    }
}
