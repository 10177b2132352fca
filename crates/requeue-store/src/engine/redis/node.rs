//! The connections to one server.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, RedisError, RedisResult, Value, cmd, pipe,
};
use tokio::time::{Instant, timeout};

use super::faults::{command_fault, connect_fault, unknown_format};
use crate::engine::lock;
use crate::types::error::{Answer, EngineError, Kind};

/// The timeout of a connection attempt.
const CONNECTING: Duration = Duration::from_secs(3);
/// The timeout of the answer to a command.
const ANSWERING: Duration = Duration::from_secs(10);
/// The timeout of a check whether the server answers.
const GREETING: Duration = Duration::from_secs(1);
/// The number of connections for adds that wait for replicas. Claims that wait for replicas have the same number of
/// connections.
const WAITING: usize = 4;

/// The kind of connection that a command uses. `WAIT` blocks all later commands on its connection. Therefore, commands
/// with `WAIT` do not share a connection with commands that are answered immediately, such as renewals. In addition,
/// claims must not wait for adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line {
    Quick,
    WaitingAdds,
    WaitingClaims,
}

/// A connection that is opened when it is first used.
#[derive(Default)]
struct Wire {
    open: Mutex<Option<MultiplexedConnection>>,
    /// The time and the error of the last failed attempt to connect. A caller holds this lock while it opens the
    /// connection.
    opening: tokio::sync::Mutex<Option<(Instant, Kind, String)>>,
}

/// A server and the open connections to it.
pub(super) struct Node {
    pub(super) info: ConnectionInfo,
    pub(super) address: String,
    wires: [Wire; 1 + 2 * WAITING],
    turn: AtomicUsize,
    /// True if the server did not answer the last request.
    silent: AtomicBool,
    /// True while a task checks whether the server answers.
    doubted: AtomicBool,
    /// True if the eviction and persistence settings of the server were read after the last connect.
    pub(super) is_examined: AtomicBool,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.address)
    }
}

impl Node {
    pub(super) fn new(info: ConnectionInfo) -> Self {
        Self {
            address: info.addr().to_string(),
            info,
            wires: Default::default(),
            turn: AtomicUsize::new(0),
            silent: AtomicBool::new(false),
            doubted: AtomicBool::new(false),
            is_examined: AtomicBool::new(false),
        }
    }

    /// Opens a separate connection. `answering` is the timeout of an answer.
    pub(super) async fn connect(&self, answering: Duration) -> Answer<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECTING))
            .set_response_timeout(Some(answering));
        let connected = async {
            let client = Client::open(self.info.clone())?;
            client.get_multiplexed_async_connection_with_config(&config).await
        };
        connected.await.map_err(|error| connect_fault(&self.address, &error))
    }

    /// Returns the number of a connection of this kind. Successive calls return different connections.
    pub(super) fn wire(&self, line: Line) -> usize {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % WAITING;
        match line {
            Line::Quick => 0,
            Line::WaitingAdds => 1 + turn,
            Line::WaitingClaims => 1 + WAITING + turn,
        }
    }

    /// Returns the shared connection with the number `wire`.
    pub(super) async fn connection(&self, wire: usize) -> Answer<MultiplexedConnection> {
        let wire = &self.wires[wire];
        let open = || lock(&wire.open).clone();
        if let Some(open) = open() {
            return Ok(open);
        }
        let since = Instant::now();
        let mut last = wire.opening.lock().await;
        if let Some(open) = open() {
            return Ok(open);
        }
        // If the attempt that this caller has waited for failed, the caller does not start another attempt.
        if let Some((at, kind, said)) = &*last
            && *at > since
        {
            return Err(EngineError { kind: *kind, source: said.clone().into() });
        }
        // The lock is held during the attempt. Therefore, many callers open only one connection to a server that has
        // returned.
        let new = self.connect(ANSWERING).await;
        let new = new.inspect_err(|fault| {
            *last = Some((Instant::now(), fault.kind, fault.source.to_string()));
        })?;
        *lock(&wire.open) = Some(new.clone());
        Ok(new)
    }

    /// Drops the connections. Commands in progress may still be answered, and later commands use new connections.
    pub(super) fn disconnect(&self) {
        self.note_silence();
        // The new connection may lead to another server, whose settings must be read.
        self.is_examined.store(false, Ordering::Relaxed);
        for wire in &self.wires {
            *lock(&wire.open) = None;
        }
    }

    pub(super) fn note_silence(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Sends the commands together, and returns all answers. Returns an error if the first answer is an error. `ahead`
    /// is true if the slot is moving to this server.
    pub(super) async fn send(
        &self,
        connection: &mut MultiplexedConnection,
        commands: &[&Cmd],
        ahead: bool,
    ) -> RedisResult<Vec<Value>> {
        let mut answers = match commands {
            [command] if !ahead => vec![connection.send_packed_command(command).await?],
            _ => {
                let mut all = pipe();
                if ahead {
                    all.cmd("ASKING");
                }
                commands.iter().for_each(|&command| _ = all.add_command(command.clone()));
                let skipped = usize::from(ahead);
                connection.send_packed_commands(&all, skipped, commands.len()).await?
            }
        };
        // `Relaxed` suffices, because the flag only decides which server is first asked for the map.
        self.silent.store(false, Ordering::Relaxed);
        if let Some(first) = answers.first_mut() {
            *first = std::mem::replace(first, Value::Nil).extract_error()?;
        }
        Ok(answers)
    }

    /// Sends commands that do not belong to a slot, and returns their answers.
    pub(super) async fn ask<const N: usize>(&self, commands: [&Cmd; N]) -> Answer<[Value; N]> {
        let mut connection = self.connection(self.wire(Line::Quick)).await?;
        let answers = self.send(&mut connection, &commands, false).await;
        let answers = answers.and_then(|answers| {
            answers.into_iter().map(Value::extract_error).collect::<RedisResult<Vec<_>>>()
        });
        let answers = answers.map_err(|error| {
            if !is_answer(&error) {
                self.disconnect();
            }
            command_fault(&self.address, &error)
        })?;
        answers.try_into().map_err(|_| unknown_format())
    }

    /// Checks whether the server answers. Returns `None` if another task is already checking the server.
    ///
    /// A `WAIT` delays all later commands on its connection. Therefore, a connection for adds is not used for the
    /// check. The check uses another connection, and the connection for adds is replaced, because it may be broken.
    pub(super) async fn is_there(&self, wire: usize) -> Option<bool> {
        // Only the first task receives `false` here, and checks the server. The flag protects no other data, so
        // `Relaxed` suffices.
        if self.doubted.swap(true, Ordering::Relaxed) {
            return None;
        }
        let is_held_up = (1..=WAITING).contains(&wire);
        let greeted = async {
            let asked = if is_held_up { self.wire(Line::Quick) } else { wire };
            let Ok(mut connection) = self.connection(asked).await else { return false };
            let greeted = self.send(&mut connection, &[&cmd("HELLO")], false).await;
            greeted.map_or_else(|error| is_answer(&error), |_| true)
        };
        let is_there = timeout(GREETING, greeted).await.unwrap_or(false);
        if is_held_up {
            // A `WAIT` may delay the answers of this connection. Therefore, the next command opens a new connection.
            *lock(&self.wires[wire].open) = None;
        }
        self.doubted.store(false, Ordering::Relaxed);
        Some(is_there)
    }
}

pub(super) fn is_answer(error: &RedisError) -> bool {
    error.code().is_some()
}
