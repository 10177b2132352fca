//! The scripts of the operations. Most scripts operate on one shard.

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

    /// Returns a call of the script for a shard. Its first argument is the generation of the queue. The caller appends
    /// the other arguments.
    pub(super) fn on(&self, shard: &Shard) -> Call<'_> {
        let mut call = self.with(&shard.keys);
        call.arg(shard.queue.generation);
        call
    }

    /// Returns a call as [`on`](Self::on) does, with one more Redis key after those of the shard.
    pub(super) fn on_also(&self, shard: &Shard, key: &str) -> Call<'_> {
        let mut command = cmd("EVALSHA");
        command.arg(&self.hash).arg(shard.keys.len() + 1).arg(&shard.keys).arg(key);
        command.arg(shard.queue.generation);
        Call { script: self, command }
    }

    /// Returns a call as [`on`](Self::on) does, with the Redis keys of the schedules after those of the shard.
    pub(super) fn on_schedules(&self, shard: &Shard) -> Call<'_> {
        let keys: Vec<_> = shard.keys.iter().cloned().chain(shard.schedules()).collect();
        let mut call = self.with(&keys);
        call.arg(shard.queue.generation);
        call
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

/// A command that runs a script. The text of the script is sent only to a server that does not have the script.
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

/// The Lua function `now`, which reads the server's clock.
pub(super) const CLOCK: &str = include_str!("lua/clock.lua");

/// The first line of scripts that a server with a full memory must also run. Otherwise, no key could be removed from
/// it.
const EVEN_IF_FULL: &str = "#!lua flags=allow-oom";
/// The first line of scripts that a server with a full memory does not start.
const UNLESS_FULL: &str = "#!lua";

const ALIVE: &str = include_str!("lua/alive.lua");
const SHARD: &str = include_str!("lua/shard.lua");
const RATES: &str = include_str!("lua/rates.lua");
const ROWS: &str = include_str!("lua/rows.lua");
const TURNS: &str = include_str!("lua/turns.lua");
const SCHEDULES: &str = include_str!("lua/schedules.lua");
const ACTIVITY: &str = include_str!("lua/activity.lua");
/// The script of adds, as a Lua function.
const ADD_KEYS: &str = concat!("local function add_keys()\n", include_str!("lua/add.lua"), "\nend");

/// Defines [`Scripts`]. Each line has the files that precede some scripts, and the names of these scripts. The names
/// are also the names of their files.
macro_rules! scripts {
    ($clock:ident: $($parts:expr => $($name:ident)*;)*) => {
        /// The scripts, one for each file in `lua` that is an operation. The struct has no nested structs, because each
        /// operation uses only one of the fields.
        #[derive(Debug)]
        pub(super) struct Scripts {
            $($(pub(super) $name: Script,)*)*
        }

        impl Scripts {
            /// Builds the scripts. `clock` is the text of a Lua function `now`.
            pub(super) fn new($clock: &str) -> Self {
                Self {
                    $($($name: {
                        let text = include_str!(concat!("lua/", stringify!($name), ".lua"));
                        Script::new(&[&$parts[..], &[text]].concat())
                    },)*)*
                }
            }
        }
    };
}

scripts! { clock:
    [EVEN_IF_FULL] => list open record floor;
    // The following scripts also change a shard that does not have the mark of the queue.
    [EVEN_IF_FULL, clock, SHARD] => drop check mark;
    [EVEN_IF_FULL, ALIVE, clock, SHARD] => wake;
    [EVEN_IF_FULL, ALIVE, clock, SHARD, RATES] => pause set_rate;
    [EVEN_IF_FULL, ALIVE, clock, SHARD, ROWS, RATES, TURNS] => claim;
    [EVEN_IF_FULL, ALIVE, clock, SHARD, ROWS] => finish renew cancel cancel_running revive repair change_group;
    [UNLESS_FULL, ALIVE, clock, SHARD, ROWS] => add;
    [UNLESS_FULL, ALIVE, clock, SHARD, SCHEDULES] => put_schedule;
    [EVEN_IF_FULL, ALIVE, clock, SHARD, SCHEDULES] => change_schedule next_schedules;
    [UNLESS_FULL, ALIVE, clock, SHARD, ROWS, ADD_KEYS, SCHEDULES] => fire_schedule;
    [UNLESS_FULL, clock, ACTIVITY] => record_activity;
    [EVEN_IF_FULL, clock, ACTIVITY] => merge_activity record_action;
    // The following scripts only read.
    [clock, ACTIVITY] => read_activity last_actions;
    [ALIVE, clock, SHARD] => peek look_up read_attempts walk parked counts is_paused read_rate list_settings;
    [ALIVE, clock, SHARD, SCHEDULES] => scan_schedules look_up_schedule;
}

#[cfg(test)]
impl Scripts {
    /// Returns a script that answers with one digit for each row in its arguments: 1 if the row can be read.
    pub(super) fn reads(&self) -> Script {
        let text = "local answers = {} for i = 2, #ARGV do answers[i - 1] = unpacked(ARGV[i]) and 1 or 0 end \
                    return table.concat(answers)";
        Script::new(&[SHARD, ROWS, text])
    }
}
