//! A server, and the connections to it.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, RedisError, RedisResult, Value, cmd, pipe,
};
use tokio::time::{Instant, timeout};

use super::faults::{failed, garbled, unconnected};
use super::lock;
use crate::types::error::{EngineError, Kind};

/// How long a connection may take to be made.
const CONNECTING: Duration = Duration::from_secs(3);
/// How long an answer may take.
const ANSWERING: Duration = Duration::from_secs(10);
/// How long it may take to say that it is there.
const GREETING: Duration = Duration::from_secs(1);
/// How many connections those have who wait for replicas.
const WAITING: usize = 4;

/// What a command goes over. `WAIT` holds up all that is behind it on its connection: that is not to
/// be what is answered at once, such as renewals, and claims are not to be behind adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line {
    Quick,
    WaitingAdds,
    WaitingClaims,
}

/// One of the connections, made when it is first wanted.
#[derive(Default)]
struct Wire {
    open: Mutex<Option<MultiplexedConnection>>,
    /// Whoever makes it has this; and of the last time that it was not made: when, and why not.
    opening: tokio::sync::Mutex<Option<(Instant, Kind, String)>>,
}

/// A server, and the connections to it that there are.
pub(super) struct Node {
    pub(super) info: ConnectionInfo,
    pub(super) address: String,
    wires: [Wire; 1 + 2 * WAITING],
    turn: AtomicUsize,
    /// Whether the last that was wanted of it was not answered.
    silent: AtomicBool,
    /// Somebody is finding out whether it is there.
    doubted: AtomicBool,
    /// Whether it has been asked if it keeps what it acknowledges, since it was last connected to.
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

    /// A connection of its own, whose answers may take this long.
    pub(super) async fn connect(
        &self,
        answering: Duration,
    ) -> Result<MultiplexedConnection, EngineError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECTING))
            .set_response_timeout(Some(answering));
        let connected = async {
            let client = Client::open(self.info.clone())?;
            client.get_multiplexed_async_connection_with_config(&config).await
        };
        connected.await.map_err(|error| unconnected(&self.address, &error))
    }

    /// The number of the connection whose turn it is.
    pub(super) fn wire(&self, line: Line) -> usize {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % WAITING;
        match line {
            Line::Quick => 0,
            Line::WaitingAdds => 1 + turn,
            Line::WaitingClaims => 1 + WAITING + turn,
        }
    }

    /// The connection with this number, which others use, too.
    pub(super) async fn connection(
        &self,
        wire: usize,
    ) -> Result<MultiplexedConnection, EngineError> {
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
        // Whoever has waited for one that was not made does not try again in turn.
        if let Some((at, kind, said)) = &*last
            && *at > since
        {
            return Err(EngineError { kind: *kind, source: said.clone().into() });
        }
        let new = self.connect(ANSWERING).await;
        let new = new.inspect_err(|fault| {
            *last = Some((Instant::now(), fault.kind, fault.source.to_string()));
        })?;
        *lock(&wire.open) = Some(new.clone());
        Ok(new)
    }

    /// What is under way on its connections may still be answered; what comes goes over new ones.
    pub(super) fn disconnect(&self) {
        self.note_silence();
        // It may be another one by then.
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

    /// The answers to all of them, which go out together; an error, if that is the first one's.
    /// `ahead`: the slot is on its way to this server.
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
        self.silent.store(false, Ordering::Relaxed);
        if let Some(first) = answers.first_mut() {
            *first = std::mem::replace(first, Value::Nil).extract_error()?;
        }
        Ok(answers)
    }

    /// The answers to what is not about any slot.
    pub(super) async fn ask<const N: usize>(
        &self,
        commands: [&Cmd; N],
    ) -> Result<[Value; N], EngineError> {
        let mut connection = self.connection(self.wire(Line::Quick)).await?;
        let answers = self.send(&mut connection, &commands, false).await;
        let answers = answers.and_then(|answers| {
            answers.into_iter().map(Value::extract_error).collect::<RedisResult<Vec<_>>>()
        });
        let answers = answers.map_err(|error| {
            if !is_answer(&error) {
                self.disconnect();
            }
            failed(&self.address, &error)
        })?;
        answers.try_into().map_err(|_| garbled())
    }

    /// Whether it says anything. What is behind a `WAIT` takes as long as that, so that where adds go it is
    /// not asked: others do, and the connection is made anew, in case it is that which is gone.
    /// `None` if somebody else is finding out.
    pub(super) async fn is_there(&self, wire: usize) -> Option<bool> {
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
            *lock(&self.wires[wire].open) = None;
        }
        self.doubted.store(false, Ordering::Relaxed);
        Some(is_there)
    }
}

pub(super) fn is_answer(error: &RedisError) -> bool {
    error.code().is_some()
}
