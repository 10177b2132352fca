//! Invariants that hold for every correct controller, and are checked in each run.
//!
//! A world checks all of them by default. [`World::disable`](crate::explore::World::disable) leaves one out, and
//! [`World::check`](crate::explore::World::check) adds one.

mod created_once;
mod current_version;
mod object;
mod one_replica;
mod wanted;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use self::created_once::CreatedOnce;
use self::current_version::CurrentVersion;
use self::object::text;
pub use self::object::{ObjectId, Verb, Writer};
use self::one_replica::OneReplica;
use self::wanted::Wanted;

/// A property that a test checks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Invariant {
    /// After the last fault, the desired state is reached within a bound.
    Converges,
    /// No two live objects come from the same creation. A creation whose answer was lost is not repeated under another
    /// name.
    CreatedOnce,
    /// No object is deleted and then created again for the same generation of its owner.
    NothingWantedDeleted,
    /// No write without a `resourceVersion` overwrites a change that the process has not seen.
    CurrentVersion,
    /// In the end, no deleted object waits for its finalizers.
    FinalizersRemoved,
    /// Only the holder of the Lease sends writes, if several replicas have an election.
    OneReplica,
    /// If nothing changes, no process changes an object, or sends many requests.
    Quiet,
    /// No code panics.
    NoPanic,
    /// A condition of the test.
    Custom(&'static str),
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Converges => "converges",
            Self::CreatedOnce => "created once",
            Self::NothingWantedDeleted => "nothing wanted is deleted",
            Self::CurrentVersion => "no write with a stale version",
            Self::FinalizersRemoved => "finalizers are removed",
            Self::OneReplica => "one replica acts",
            Self::Quiet => "quiet when nothing changes",
            Self::NoPanic => "no panic",
            Self::Custom(name) => name,
        })
    }
}

/// A write that the API server has executed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Write {
    /// The client that has sent the request.
    pub writer: Writer,
    /// The kind of the request.
    pub verb: Verb,
    /// The object. For a creation, the name that the server chose.
    pub object: ObjectId,
    /// The subresource, such as `status`.
    pub subresource: Option<String>,
    /// The body of the request.
    pub body: Value,
    /// The object before the write. `None` if it did not exist.
    pub before: Option<Arc<Value>>,
    /// The object as the server answered it. `None` if it no longer exists.
    pub after: Option<Arc<Value>>,
    /// The object as the writer last saw it, if this is known.
    pub seen: Option<Arc<Value>>,
}

impl Write {
    /// Returns true if the object has changed.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        let version = |object: &Option<Arc<Value>>| {
            object.as_ref().map(|object| object["metadata"]["resourceVersion"].clone())
        };
        version(&self.before) != version(&self.after)
    }

    /// Returns true if the write has created the object.
    #[must_use]
    pub fn has_created(&self) -> bool {
        self.before.is_none() && self.after.is_some()
    }
}

/// A write that a process is about to send.
#[derive(Debug)]
pub(crate) struct Sent<'a> {
    pub(crate) writer: Writer,
    pub(crate) object: &'a ObjectId,
}

type Checked = Result<(), String>;
type Custom = Box<dyn FnMut(&Write) -> Checked + Send>;
type IsWanted = Box<dyn Fn(&Value) -> bool + Send>;

/// A violated invariant, with what happened.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) invariant: Invariant,
    pub(crate) what: String,
}

/// The state of all invariants of a world.
#[derive(Default)]
pub(crate) struct Invariants {
    disabled: BTreeSet<Invariant>,
    created_once: CreatedOnce,
    wanted: Wanted,
    current_version: CurrentVersion,
    one_replica: OneReplica,
    custom: Vec<(&'static str, Custom)>,
    is_wanted: Vec<IsWanted>,
}

impl Invariants {
    pub(crate) fn disable(&mut self, invariant: Invariant) {
        self.disabled.insert(invariant);
    }

    pub(crate) fn is_enabled(&self, invariant: Invariant) -> bool {
        !self.disabled.contains(&invariant)
    }

    pub(crate) fn add_check(&mut self, name: &'static str, check: Custom) {
        self.custom.push((name, check));
    }

    pub(crate) fn add_wanted(&mut self, is_wanted: IsWanted) {
        self.is_wanted.push(is_wanted);
    }

    /// Checks a write of a process when it is sent.
    pub(crate) fn check_sent(&mut self, sent: &Sent<'_>) -> Result<(), Violation> {
        self.report(Invariant::OneReplica, |all| all.one_replica.check_sent(sent))
    }

    /// Notes that an object no longer exists: it was deleted by a client, or by the server itself.
    pub(crate) fn note_removal(&mut self, object: &Value) {
        self.created_once.note_removal(object);
        self.wanted.note_removal(object);
    }

    /// Checks a write after its execution.
    pub(crate) fn check_write(&mut self, write: &Write) -> Result<(), Violation> {
        self.report(Invariant::OneReplica, |all| {
            all.one_replica.note_write(write);
            Ok(())
        })?;
        self.report(Invariant::CreatedOnce, |all| all.created_once.check_write(write))?;
        self.report(Invariant::CurrentVersion, |all| all.current_version.check_write(write))?;
        self.report(Invariant::NothingWantedDeleted, |all| {
            all.check_wanted(write)?;
            all.wanted.check_write(write)
        })?;
        for n in 0..self.custom.len() {
            let invariant = Invariant::Custom(self.custom[n].0);
            self.report(invariant, |all| (all.custom[n].1)(write))?;
        }
        Ok(())
    }

    fn check_wanted(&self, write: &Write) -> Checked {
        let Some(before) = &write.before else { return Ok(()) };
        let is_deletion = write.verb == Verb::Delete && write.writer.is_process();
        if is_deletion && self.is_wanted.iter().any(|is_wanted| is_wanted(before)) {
            return Err(format!("{} is wanted, and {} deletes it", write.object, write.writer));
        }
        Ok(())
    }

    fn report(
        &mut self,
        invariant: Invariant,
        check: impl FnOnce(&mut Self) -> Checked,
    ) -> Result<(), Violation> {
        match check(self) {
            Err(what) if self.is_enabled(invariant) => Err(Violation { invariant, what }),
            _ => Ok(()),
        }
    }
}

/// Checks the objects in the end, when nothing changes any longer.
pub(crate) fn check_end<'a>(objects: impl Iterator<Item = &'a Value>) -> Result<(), Violation> {
    for object in objects {
        let metadata = &object["metadata"];
        let name = || format!("{} {}", text(&object["kind"]), text(&metadata["name"]));
        let left = metadata["finalizers"].as_array().is_some_and(|left| !left.is_empty());
        if !metadata["deletionTimestamp"].is_null() && left {
            let what = format!("{} is deleted, and waits for {}", name(), metadata["finalizers"]);
            return Err(Violation { invariant: Invariant::FinalizersRemoved, what });
        }
        let (observed, generation) =
            (object["status"]["observedGeneration"].as_i64(), metadata["generation"].as_i64());
        if let (Some(observed), Some(generation)) = (observed, generation)
            && observed < generation
        {
            let what = format!(
                "the status of {} describes generation {observed}, and the object has {generation}",
                name()
            );
            return Err(Violation { invariant: Invariant::Converges, what });
        }
    }
    Ok(())
}
