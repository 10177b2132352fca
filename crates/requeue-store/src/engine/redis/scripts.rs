//! The scripts of the operations. Each operates on one shard.

use std::ops::{Deref, DerefMut};

use redis::{Cmd, Script as Hashed, cmd};

use super::names::Shard;

#[derive(Debug)]
pub(super) struct Script {
    text: String,
    hash: String,
}

impl Script {
    pub(super) fn new(parts: &[&str]) -> Self {
        let text = parts.join("\n");
        let hash = Hashed::new(&text).get_hash().to_owned();
        Self { text, hash }
    }

    /// Returns a call of the script for this shard. The caller appends the arguments, which follow the
    /// generation of the queue.
    pub(super) fn on(&self, shard: &Shard) -> Call<'_> {
        let mut call = self.with(&shard.keys);
        call.arg(shard.queue.generation);
        call
    }

    /// As [`on`](Self::on), with another Redis key after those of the shard.
    pub(super) fn on_also(&self, shard: &Shard, key: &str) -> Call<'_> {
        let mut command = cmd("EVALSHA");
        command.arg(&self.hash).arg(shard.keys.len() + 1).arg(&shard.keys).arg(key);
        command.arg(shard.queue.generation);
        Call { script: self, command }
    }

    pub(super) fn with(&self, keys: &[String]) -> Call<'_> {
        let mut command = cmd("EVALSHA");
        command.arg(&self.hash).arg(keys.len()).arg(keys);
        Call { script: self, command }
    }

    /// Returns the command that loads the script into a server.
    pub(super) fn load(&self) -> Cmd {
        let mut command = cmd("SCRIPT");
        command.arg("LOAD").arg(&self.text);
        command
    }
}

/// A command that runs a script. A server that does not know the script gets its text.
pub(super) struct Call<'s> {
    pub(super) script: &'s Script,
    command: Cmd,
}

impl Deref for Call<'_> {
    type Target = Cmd;

    fn deref(&self) -> &Cmd {
        &self.command
    }
}

impl DerefMut for Call<'_> {
    fn deref_mut(&mut self) -> &mut Cmd {
        &mut self.command
    }
}

/// The scripts, one for each file in `lua` that is an operation. They have no groups: each operation calls one of them.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) list: Script,
    pub(super) open: Script,
    pub(super) record: Script,
    pub(super) floor: Script,
    pub(super) drop: Script,
    pub(super) check: Script,
    pub(super) mark: Script,
    pub(super) add: Script,
    pub(super) claim: Script,
    pub(super) peek: Script,
    pub(super) finish: Script,
    pub(super) renew: Script,
    pub(super) cancel: Script,
    pub(super) cancel_running: Script,
    pub(super) revive: Script,
    pub(super) look_up: Script,
    pub(super) walk: Script,
    pub(super) parked: Script,
    pub(super) counts: Script,
    pub(super) repair: Script,
    pub(super) wake: Script,
    pub(super) pause: Script,
    pub(super) is_paused: Script,
}

/// The clock of the server.
pub(super) const CLOCK: &str = include_str!("lua/clock.lua");

/// Scripts that also run on a full server: otherwise no key could leave it.
const EVEN_IF_FULL: &str = "#!lua flags=allow-oom";
/// Scripts that a full server does not start.
const UNLESS_FULL: &str = "#!lua";

impl Scripts {
    /// Returns a script that answers one digit per row of ARGV: 1 if the row can be read.
    #[cfg(test)]
    pub(super) fn reads(&self) -> Script {
        let (shard, rows) = (include_str!("lua/shard.lua"), include_str!("lua/rows.lua"));
        let text = "local answers = {} for i = 2, #ARGV do answers[i - 1] = unpacked(ARGV[i]) and 1 or 0 end \
                    return table.concat(answers)";
        Script::new(&[shard, rows, text])
    }

    /// Builds the scripts. `clock` defines a Lua function `now`.
    pub(super) fn new(clock: &str) -> Self {
        let shard = include_str!("lua/shard.lua");
        let rows = include_str!("lua/rows.lua");
        let alive = include_str!("lua/alive.lua");
        let operation = |text| Script::new(&[EVEN_IF_FULL, alive, clock, shard, rows, text]);
        let look = |text| Script::new(&[alive, clock, shard, text]);
        // These scripts also operate on shards without the mark of the queue.
        let touch = |text| Script::new(&[EVEN_IF_FULL, clock, shard, text]);
        Self {
            list: Script::new(&[EVEN_IF_FULL, include_str!("lua/list.lua")]),
            open: Script::new(&[EVEN_IF_FULL, include_str!("lua/open.lua")]),
            record: Script::new(&[EVEN_IF_FULL, include_str!("lua/record.lua")]),
            floor: Script::new(&[EVEN_IF_FULL, include_str!("lua/floor.lua")]),
            drop: touch(include_str!("lua/drop.lua")),
            check: touch(include_str!("lua/check.lua")),
            mark: touch(include_str!("lua/mark.lua")),
            add: Script::new(&[
                UNLESS_FULL,
                alive,
                clock,
                shard,
                rows,
                include_str!("lua/add.lua"),
            ]),
            claim: operation(include_str!("lua/claim.lua")),
            peek: look(include_str!("lua/peek.lua")),
            finish: operation(include_str!("lua/finish.lua")),
            renew: operation(include_str!("lua/renew.lua")),
            cancel: operation(include_str!("lua/cancel.lua")),
            cancel_running: operation(include_str!("lua/cancel_running.lua")),
            revive: operation(include_str!("lua/revive.lua")),
            look_up: look(include_str!("lua/look_up.lua")),
            walk: look(include_str!("lua/walk.lua")),
            parked: look(include_str!("lua/parked.lua")),
            counts: look(include_str!("lua/counts.lua")),
            repair: operation(include_str!("lua/repair.lua")),
            wake: Script::new(&[EVEN_IF_FULL, alive, clock, shard, "wake()"]),
            pause: Script::new(&[EVEN_IF_FULL, alive, clock, shard, include_str!("lua/pause.lua")]),
            is_paused: look(include_str!("lua/is_paused.lua")),
        }
    }
}
