//! The invariants that hold for every correct controller. The world checks them in each run.
//!
//! By default, a world checks all of them. [`World::disable`](crate::explore::World::disable)
//! disables one of them, and [`World::check`](crate::explore::World::check) adds another one.

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

/// A condition that a run must not violate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Invariant {
    /// Within a bound after the last fault, the desired state is reached.
    Converges,
    /// No creation is executed twice under different names, for example because its answer was
    /// lost.
    CreatedOnce,
    /// No object is deleted and then created again while the generation of its owner is the same.
    NothingWantedDeleted,
    /// No write without a `resourceVersion` overwrites a change that its process has not received.
    CurrentVersion,
    /// At the end, no object that is being deleted still has finalizers.
    FinalizersRemoved,
    /// If several replicas have an election, only the holder of the Lease sends writes.
    OneReplica,
    /// After the desired state is reached, no process changes an object, or sends many requests.
    Quiet,
    /// The code under test does not panic.
    NoPanic,
    /// A condition of the test, with its name.
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

/// A write that the API server has executed, as the invariants see it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Write {
    /// The client that sent the request.
    pub writer: Writer,
    /// The verb of the request.
    pub verb: Verb,
    /// The written object. After a creation, it has the name that the server has stored.
    pub object: ObjectId,
    /// The subresource of the request, such as `status`, or `None`.
    pub subresource: Option<String>,
    /// The body of the request.
    pub body: Value,
    /// The object before the write, or `None` if it did not exist.
    pub before: Option<Arc<Value>>,
    /// The object in the response of the server, or `None` if it no longer exists.
    pub after: Option<Arc<Value>>,
    /// The last state of the object that the writer has received, or `None` if this state is
    /// unknown.
    pub seen: Option<Arc<Value>>,
}

impl Write {
    /// Returns true if the write has changed the object, so that it has another resource version.
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

/// A write that a process is sending, before the server receives it.
#[derive(Debug)]
pub(crate) struct Sent<'a> {
    pub(crate) writer: Writer,
    pub(crate) object: &'a ObjectId,
}

type Checked = Result<(), String>;
type Custom = Box<dyn FnMut(&Write) -> Checked + Send>;
type IsWanted = Box<dyn Fn(&Value) -> bool + Send>;

/// A violated invariant, and a description of the violation.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) invariant: Invariant,
    pub(crate) what: String,
}

/// The invariants of a world, with their state.
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

    /// Checks a write of a process before the server receives it.
    pub(crate) fn check_sent(&mut self, sent: &Sent<'_>) -> Result<(), Violation> {
        self.report(Invariant::OneReplica, |all| all.one_replica.check_sent(sent))
    }

    /// Informs the invariants that an object no longer exists. A client or the server may have
    /// removed it.
    pub(crate) fn note_removal(&mut self, object: &Value) {
        self.created_once.note_removal(object);
        self.wanted.note_removal(object);
    }

    /// Checks a write after the server has executed it.
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

/// Checks all objects at the end of a run, after the quiet time.
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
