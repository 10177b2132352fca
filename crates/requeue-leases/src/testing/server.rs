//! The state of an API server that stores Leases and reports their changes, without HTTP.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::lease::Lease;
use crate::membership::protocol::Watched;
use crate::requests::{Answer, Call};

#[derive(Default)]
pub(crate) struct Server {
    pub(crate) leases: BTreeMap<String, Value>,
    /// The same Leases in parsed form.
    read: BTreeMap<String, Lease>,
    version: u64,
    /// The number of Leases that clients have created so far.
    pub(crate) created: u64,
    /// The new events for watches. The caller of the server takes them from this list.
    pub(crate) events: Vec<Watched>,
    /// With a planted bug, true: a write succeeds although the object has changed.
    pub(crate) ignores_versions: bool,
}

pub(crate) fn lease(json: &Value) -> Lease {
    Lease::from_json(json.clone()).unwrap()
}

impl Server {
    pub(crate) fn call(&mut self, call: Call) -> Answer {
        match call {
            Call::Read(name) => match self.read.get(&name) {
                Some(lease) => Answer::Lease(lease.clone()),
                None => Answer::NotFound,
            },
            Call::Create(json) => {
                let name = json["metadata"]["name"].as_str().unwrap();
                if self.leases.contains_key(name) {
                    return Answer::Conflict;
                }
                let uid = format!("uid-{}", self.version + 1);
                self.created += 1;
                self.store(json, &uid)
            }
            Call::Replace(json) => {
                let name = json["metadata"]["name"].as_str().unwrap();
                let Some(stored) = self.leases.get(name) else { return Answer::NotFound };
                let fits = |field: &str| json["metadata"][field] == stored["metadata"][field];
                if !fits("uid") || (!fits("resourceVersion") && !self.ignores_versions) {
                    return Answer::Conflict;
                }
                if *stored == json {
                    return Answer::Lease(lease(stored));
                }
                let uid = json["metadata"]["uid"].as_str().unwrap().to_owned();
                self.store(json, &uid)
            }
            Call::Delete { name, uid, version } => {
                let Some(stored) = self.read.get(&name) else {
                    return Answer::NotFound;
                };
                // Version 0 means that the version is not a precondition.
                if stored.uid() != uid || (version != 0 && stored.resource_version() != version) {
                    return Answer::Conflict;
                }
                self.delete(&name);
                Answer::Deleted
            }
        }
    }

    /// Deletes a Lease without a precondition, as a user does with kubectl.
    pub(crate) fn delete(&mut self, name: &str) {
        if let Some(mut json) = self.leases.remove(name) {
            self.read.remove(name);
            self.version += 1;
            json["metadata"]["resourceVersion"] = json!(self.version.to_string());
            self.events.push(Watched::Delete(lease(&json)));
        }
    }

    #[cfg(test)]
    /// Changes a label of a Lease, as another client may do.
    pub(crate) fn label(&mut self, name: &str, value: u64) {
        if let Some(mut json) = self.leases.get(name).cloned() {
            json["metadata"]["labels"]["changed"] = json!(value.to_string());
            let uid = json["metadata"]["uid"].as_str().unwrap().to_owned();
            self.store(json, &uid);
        }
    }

    #[cfg(test)]
    /// Returns the events with which a watch reports all Leases.
    pub(crate) fn list(&self) -> Vec<Watched> {
        let listed = self.read.values().cloned().map(Watched::InitApply);
        listed.chain([Watched::InitDone]).collect()
    }

    fn store(&mut self, mut json: Value, uid: &str) -> Answer {
        self.version += 1;
        json["metadata"]["uid"] = json!(uid);
        json["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let name = json["metadata"]["name"].as_str().unwrap().to_owned();
        let stored = lease(&json);
        self.leases.insert(name.clone(), json);
        self.read.insert(name, stored.clone());
        self.events.push(Watched::Apply(stored.clone()));
        Answer::Lease(stored)
    }
}
