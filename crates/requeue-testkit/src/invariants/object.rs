//! The names of objects and clients, and functions that read parts of an object.

use std::fmt;

use serde_json::Value;

/// Identifies an object in an API server.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[non_exhaustive]
pub struct ObjectId {
    /// The API group of the object. It is empty for the core group.
    pub group: String,
    /// The plural name of the kind, which is a part of the path of the object.
    pub plural: String,
    /// The namespace of the object. It is empty for a cluster-scoped object.
    pub namespace: String,
    /// The name of the object. It is empty if the request is for a list.
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

/// A client that sends requests to the API server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Writer {
    /// The test, or another client that a fault simulates.
    User,
    /// A process of the world.
    Process {
        /// The number of the call of `run` or `run_replicas` that started the process.
        set: u32,
        /// The number of the replica in this call.
        replica: u32,
        /// The number of times that the replica was started before.
        start: u32,
    },
}

impl Writer {
    /// Returns true if the client is a process of the world.
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

/// The type of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Verb {
    /// Reads one object.
    Get,
    /// Reads a list of objects.
    List,
    /// Watches the changes of objects.
    Watch,
    /// Creates an object.
    Create,
    /// Replaces an object.
    Replace,
    /// Applies a configuration to an object (server-side apply).
    Apply,
    /// Changes an object with a patch of another type.
    Patch,
    /// Deletes one object, or a collection of objects.
    Delete,
}

impl Verb {
    /// Returns true if requests with this verb can change objects.
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

/// Returns the owner reference that names the controller of the object, or `None` if it
/// has none.
pub(super) fn controller(object: &Value) -> Option<&Value> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["controller"] == true)
}
