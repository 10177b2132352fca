//! Runs scripts on shards.

use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::faults::unknown_format;
use super::names::Shard;
use super::node::Line;
use super::scripts::Script;
use super::{Redis, dropping, values};
use crate::types::error::{EngineError, Kind};

/// The maximum number of times that a mark is restored, if the server evicts it again immediately.
const ATTEMPTS: u32 = 10;

impl Redis {
    pub(super) async fn run(
        &self,
        shard: &Shard,
        script: &Script,
        command: &Cmd,
    ) -> Result<Value, EngineError> {
        let mut answers = self.send(shard, script, Line::Quick, &[command]).await?;
        answers.pop().ok_or_else(unknown_format)
    }

    /// As [`run`](Self::run). Also waits for replicas, at most `limit`, and returns how many have
    /// confirmed.
    pub(super) async fn run_and_wait(
        &self,
        shard: &Shard,
        script: &Script,
        command: &Cmd,
        (line, limit): (Line, Duration),
    ) -> Result<(Value, u32), EngineError> {
        if self.wait == 0 {
            return Ok((self.run(shard, script, command).await?, 0));
        }
        let mut wait = cmd("WAIT");
        wait.arg(self.wait).arg(limit.as_millis() as u64);
        let mut answers = self.send(shard, script, line, &[command, &wait]).await?;
        let replicas = answers.pop().ok_or_else(unknown_format).and_then(values::number)?;
        let replicas = replicas.try_into().map_err(|_| unknown_format())?;
        Ok((answers.pop().ok_or_else(unknown_format)?, replicas))
    }

    /// Sends the commands. The first one runs the script. Restores the shard's mark if the server has lost
    /// it.
    async fn send(
        &self,
        shard: &Shard,
        script: &Script,
        line: Line,
        commands: &[&Cmd],
    ) -> Result<Vec<Value>, EngineError> {
        let mut attempts = 0..ATTEMPTS;
        loop {
            match self.nodes.send(shard.slot, line, commands, Some(script)).await {
                Err(fault) if fault.kind == Kind::Dropped && attempts.next().is_some() => {
                    Box::pin(self.restore_mark(shard)).await?;
                }
                answered => return answered.map_err(|fault| dropping::name_dropped(shard, fault)),
            }
        }
    }
}
