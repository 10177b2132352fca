//! The engine for PostgreSQL 14 and later. This page describes addresses, roles, and adds in a transaction of the
//! caller.
//!
//! # Address
//!
//! The address is `postgres://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE&…`, in the format of `libpq`. Special
//! characters are percent-encoded: `%40` stands for `@`, and a directory of Unix sockets is written
//! `%2Frun%2Fpostgresql`. If there are several hosts, separated by commas, they are tried in order.
//! `target_session_attrs=read-write` selects the host that accepts writes.
//!
//! - The password can also come from `PGPASSWORD`, or from a file. The file is `passfile=FILE`, `PGPASSFILE` or
//!   `~/.pgpass`, and other users must not have access to it. The password appears in no error and no log.
//! - The values `prefer` (the default), `require` and `disable` of `sslmode` do not verify the identity of the server.
//!   With `verify-ca`, a trusted authority must have signed the server's certificate. With `verify-full`, the
//!   certificate must also name the host. The trusted authorities are those in `sslrootcert=FILE`, or those of the
//!   system. With the authorities of the system, `verify-ca` means `verify-full`.
//! - `sslrootcert=system` without `sslmode` implies `verify-full`, and `sslrootcert=FILE` implies `verify-ca`.
//!   `connect` refuses a weaker `sslmode` together with either option, with one exception: `require` with a file means
//!   `verify-ca`.
//! - A password is sent in clear text, or as an MD5 hash, only over loopback, over a Unix socket, or to a server that
//!   TLS has verified. On any other connection, a server that asks for one of these forms causes the connection to
//!   fail. Passwords for `scram-sha-256`, the default of servers, can be used on any connection, because SCRAM does not
//!   reveal them.
//! - `channel_binding=require` needs TLS, and prevents a server in the middle from forwarding SCRAM messages. The
//!   option also authenticates a server whose certificate no authority has signed.
//! - `connections=N` is the maximum number of connections, 12 by default. Two more connections renew leases and listen
//!   for notifications. The settings of a session are those of the role or the database, with two exceptions: commits
//!   are always durable, and the isolation level is fixed.
//! - `pooler=transaction` and `listen=HOST:PORT` are described [below](#behind-a-pooler).
//!
//! # Behind a pooler
//!
//! A pooler such as pgbouncer with `pool_mode = transaction` may run each transaction in a different session of the
//! server. Therefore, prepared statements, settings and `LISTEN` do not last from one transaction to the next. With
//! `pooler=transaction`, the process prepares no statement, and runs each statement in a separate transaction, which
//! first applies the settings. Without the option, [`Store::connect`](crate::Store::connect) refuses such a pooler if
//! it gives two connections the same session.
//!
//! The pooler does not pass notifications on. The option `listen=HOST:PORT` is the address of the server itself. With
//! this option, a process that waits for keys opens one connection to the server, with the same user, password and
//! database. Without the option, the process [polls](crate::OpenOptions::poll), and logs a warning. Processes that only
//! add keys do not need the option.
//!
//! # Durability
//!
//! When the call of an add or a claim returns, the change is committed, and is as durable as any commit of the server.
//! The commit of a completion does not wait for the disk. A crash of the server may undo the last completions before
//! the crash, but a crash of a client undoes none. If a completion is undone, the effect on its key is the same as that
//! of an expired lease.
//!
//! If an asynchronous standby is promoted, adds and claims that it had not received are lost. If
//! `synchronous_standby_names` names a standby, none of them is lost. Fencing tokens grow in either case.
//!
//! # Adds in a transaction of the caller
//!
//! In Rust, [`add_in`] adds keys in a transaction of tokio-postgres 0.7. In all languages, the SQL functions
//! `requeue.add` and `requeue.add_many` add keys in the current transaction. If the transaction is rolled back, no keys
//! are added. When it is committed, the server notifies workers. The queue must exist: the first process that opens it
//! creates it, and so does `requeue.open`.
//!
//! ```sql
//! select requeue.open('mail');                       -- hold => false: ReaddPolicy::Replace
//!                                                    -- revive => false: ParkedAdd::Keep
//! select requeue.add('mail', 'alice');      -- new, coalesced, dirty, backing_off, revived or parked
//! select requeue.add('mail', 'bob', '10 min', merge => 'latest', priority => 'high',
//!                    flags => 5, revive => true);
//! select requeue.add('mail', 'erin', debounce => '300 ms', at_most => '5 s');
//! select * from requeue.add_many('mail', array['carol', 'dave'], '10 min', priority => 'low');
//! ```
//!
//! In a queue with [groups](crate::GroupBy), the add names the group. The name of this parameter must be quoted,
//! because `group` is a reserved word of SQL:
//!
//! ```sql
//! select requeue.open('jobs', group_by => '', group_limit => 10);
//! select requeue.add('jobs', 'invoice/17', "group" => 'tenant-a');
//! ```
//!
//! If a pattern extracts the groups, the caller must name the group that the pattern extracts. In Rust,
//! [`add_in_group`] adds keys to a group. A key that is already in the queue stays in its group.
//!
//! A schedule adds a key at each of its times: see [`Queue::schedule`](crate::Queue::schedule). A process that claims
//! keys of the queue computes the times. If this process refuses a schedule, the schedule stays in the table, and the
//! column `error` has the reason:
//!
//! ```sql
//! select requeue.schedule('mail', 'digest', '0 9 * * MON-FRI', 'Europe/Berlin', priority => 'low');
//! select requeue.schedule('mail', 'pulse', 'every 5m');
//! select * from requeue.list_schedules('mail');
//! select requeue.pause_schedule('mail', 'digest');   -- and resume_schedule, unschedule
//! ```
//!
//! Keys are `text` or `bytea`. `add_many` applies the same options to all of its keys. It returns one row with the
//! number of keys for each answer, in the columns `new`, `coalesced`, `dirty`, `backing_off`, `revived` and `parked`.
//! If the array is a literal or an untyped parameter, name its type: `$1::text[]`.
//!
//! The keys that a transaction has added stay locked until the transaction ends. Until then, they are not delivered.
//! Another add of such a key, or a completion of its delivery, waits until about 250 ms after the end of the
//! transaction. The wait is longer if very many keys are locked. Other keys of the same batch do not wait, and leases
//! are renewed. Two transactions that add the same keys one by one in different orders deadlock, as two transactions
//! that update rows do. `add_many` and `add_in` lock keys in a fixed order.
//!
//! A delay starts with the add, not with the commit. The key can be delivered as soon as its transaction is committed,
//! no matter how long the transaction was open.
//!
//! Further SQL functions let programs in any language work on a queue, beside workers in Rust. Such a program can
//! complete a delivery in its own transaction:
//!
//! ```sql
//! select key, token from requeue.claim('mail', 'worker-1', keys => 10);
//! select requeue.complete('mail', 'alice', 1795946693433282);   -- the token of the claim; false if the lease is lost
//! ```
//!
//! A trigger can add a key for each change of a table:
//!
//! ```sql
#![doc = include_str!("trigger.sql")]
//! ```
//!
//! # Roles
//!
//! [`Store::migrate`](crate::Store::migrate) creates everything in the schema `requeue`. Its role needs the right to
//! create a schema in the database, and then owns the schema. Other roles need only these privileges:
//!
//! ```sql
#![doc = include_str!("roles.sql")]
//! ```
//!
//! # Growth
//!
//! Each run of a key writes its row three times: for the add, the claim and the completion. Autovacuum must be on, and
//! runs often for this table, because of the table's settings. A transaction that stays open for hours, anywhere in the
//! database, prevents the removal of old row versions. Claims start their scans as late in the index as they can.
//! Therefore, old row versions cost disk space before they cost time.

mod actions;
mod activity;
mod adding;
mod address;
mod claims;
mod faults;
mod guard;
mod listening;
mod operations;
mod params;
mod passwords;
mod reaching;
mod schedules;
mod schema;
mod sessions;
#[cfg(test)]
mod tests;
mod tls;
mod values;
mod watermark;

use std::time::Duration;

use tokio::sync::Semaphore;

pub use self::adding::{add_in, add_in_group};
pub(crate) use self::address::Address;
use self::claims::Claims;
use self::guard::Connector;
use self::listening::Listener;
use self::sessions::Sessions;
use crate::types::error::ConnectError;

/// The minimum interval between two scans of all keys below the watermark.
const WHOLE: Duration = Duration::from_secs(1);
/// The maximum number of connections that read all keys at the same time, to count keys or to return a page.
const LOOKS: usize = 2;

#[derive(Debug)]
pub(crate) struct Postgres {
    address: Address,
    connector: Connector,
    sessions: Sessions,
    /// Limits the number of slow reads, so that connections remain for other operations.
    looks: Semaphore,
    /// Separate connections for renewals. Leases are renewed even if all other connections wait for locks.
    renewals: Sessions,
    listener: Listener,
    claims: Claims,
}

impl Postgres {
    pub(crate) async fn connect(address: Address) -> Result<Self, ConnectError> {
        let engine = Self::new(address, WHOLE)?;
        match engine.check_reachable().await {
            Ok(()) => Ok(engine),
            Err(fault) => Err(ConnectError::from_engine(engine.address.without_secrets(), fault)),
        }
    }

    fn new(address: Address, whole: Duration) -> Result<Self, ConnectError> {
        let connector = Connector::new(tls::tls_connector(&address.trust)?, address.negotiation);
        let sessions = Sessions::new(&address, connector.clone(), address.connections);
        let renewals = Sessions::new(&address, connector.clone(), 1);
        let listener = Listener::new();
        let listens = address.listen.is_some();
        let claims = Claims::new(sessions.clone(), listener.queue_wakes(), listens, whole);
        let looks = Semaphore::new(LOOKS);
        Ok(Self { address, connector, sessions, looks, renewals, listener, claims })
    }
}
