//! Runs scripts on shards.

use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::faults::unknown_format;
use super::names::Shard;
use super::node::Line;
use super::scripts::Call;
use super::{Redis, dropping, values};
use crate::types::error::{Answer, Kind};

/// The maximum number of attempts to restore a mark. A server may evict the mark again immediately.
const ATTEMPTS: u32 = 10;

impl Redis {
    pub(super) async fn run_script(&self, shard: &Shard, call: &Call<'_>) -> Answer<Value> {
        let mut answers = self.send_script(shard, Line::Quick, call, &[call]).await?;
        answers.pop().ok_or_else(unknown_format)
    }

    /// Runs a script as [`run_script`](Self::run_script) does, and then waits for replicas, at most for `limit`. Also
    /// returns the number of replicas that have confirmed the writes.
    pub(super) async fn run_and_wait(
        &self,
        shard: &Shard,
        call: &Call<'_>,
        (line, limit): (Line, Duration),
    ) -> Answer<(Value, u32)> {
        if self.wait == 0 {
            return Ok((self.run_script(shard, call).await?, 0));
        }
        let mut wait = cmd("WAIT");
        wait.arg(self.wait).arg(limit.as_millis() as u64);
        // Both commands use one connection, and the script runs first. Therefore, `WAIT` waits for the writes of the
        // script.
        let mut answers = self.send_script(shard, line, call, &[call, &wait]).await?;
        let replicas = answers.pop().ok_or_else(unknown_format).and_then(values::number)?;
        let replicas = replicas.try_into().map_err(|_| unknown_format())?;
        Ok((answers.pop().ok_or_else(unknown_format)?, replicas))
    }

    /// Sends the commands. `call` is the first of them. Restores the shard's mark if the server has lost it.
    async fn send_script(
        &self,
        shard: &Shard,
        line: Line,
        call: &Call<'_>,
        commands: &[&Cmd],
    ) -> Answer<Vec<Value>> {
        let mut attempts = 0..ATTEMPTS;
        loop {
            match self.nodes.send(shard.slot, line, commands, Some(call.script)).await {
                // A server that evicts keys may also evict marks. Only the record decides whether the queue was
                // dropped.
                Err(fault) if fault.kind == Kind::Dropped && attempts.next().is_some() => {
                    Box::pin(self.restore_mark(shard)).await?;
                }
                answered => return answered.map_err(|fault| dropping::name_dropped(shard, fault)),
            }
        }
    }
}
