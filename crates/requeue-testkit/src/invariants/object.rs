//! Names of objects and writers, and readers of JSON.

use std::fmt;

use serde_json::Value;

/// The name of an object in an API server.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[non_exhaustive]
pub struct ObjectId {
    /// The API group. It is empty for the core group.
    pub group: String,
    /// The plural of the kind, as in paths.
    pub plural: String,
    /// The namespace. It is empty for objects without one.
    pub namespace: String,
    /// The name. It is empty for a list.
    pub name: String,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, plural, namespace, name } = self;
        f.write_str(plural)?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        f.write_str(" ")?;
        if !namespace.is_empty() {
            write!(f, "{namespace}/")?;
        }
        f.write_str(name)
    }
}

/// The client that sends a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Writer {
    /// The test, or a client of a fault.
    User,
    /// A process of the world.
    Process {
        /// The number of the call of `run` that has started it.
        set: u32,
        /// The number of the replica.
        replica: u32,
        /// The number of starts before this one.
        start: u32,
    },
}

impl Writer {
    /// Returns true for a process of the world.
    #[must_use]
    pub const fn is_process(self) -> bool {
        matches!(self, Self::Process { .. })
    }
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User => f.write_str("the user"),
            Self::Process { set, replica, start } => {
                write!(f, "process {set}.{replica}.{start}")
            }
        }
    }
}

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Verb {
    /// Reads an object.
    Get,
    /// Reads a list.
    List,
    /// Watches a list.
    Watch,
    /// Creates an object.
    Create,
    /// Replaces an object.
    Replace,
    /// Applies an object: a server-side apply.
    Apply,
    /// Changes an object by a patch of another type.
    Patch,
    /// Deletes one object or a collection.
    Delete,
}

impl Verb {
    /// Returns true for requests that change objects.
    #[must_use]
    pub const fn is_write(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn uid(object: &Value) -> &str {
    text(&object["metadata"]["uid"])
}

/// Returns the reference to the object's controller.
pub(super) fn controller(object: &Value) -> Option<&Value> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["controller"] == true)
}
