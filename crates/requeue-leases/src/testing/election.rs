//! An API server that holds one Lease.

use serde_json::{Value, json};

use crate::leader::election::{Answer, Call};
use crate::leader::lease::Lease;

#[derive(Default)]
pub(super) struct Server {
    pub(super) lease: Option<Value>,
    version: u64,
    uids: u64,
}

impl Server {
    /// Executes a call. Returns the Lease, or the code of the error.
    pub(super) fn call(&mut self, call: Call) -> Result<Value, u16> {
        match (call, &self.lease) {
            (Call::Get, None) | (Call::Replace(_), None) => Err(404),
            (Call::Get, Some(lease)) => Ok(lease.clone()),
            (Call::Create(_), Some(_)) => Err(409),
            (Call::Create(lease), None) => {
                self.uids += 1;
                let uid = format!("uid-{}", self.uids);
                Ok(self.store(lease, &uid))
            }
            (Call::Replace(new), Some(lease)) => {
                let precondition = &new["metadata"];
                let fits = |field| precondition[field] == lease["metadata"][field];
                if !fits("uid") || !fits("resourceVersion") {
                    return Err(409);
                }
                let uid = precondition["uid"].as_str().unwrap().to_owned();
                Ok(self.store(new, &uid))
            }
        }
    }

    pub(super) fn answer(&mut self, call: Call) -> Answer {
        match self.call(call) {
            Ok(lease) => Answer::Lease(Lease::from_json(lease).unwrap()),
            Err(404) => Answer::NotFound,
            Err(_) => Answer::Conflict,
        }
    }

    /// Changes a label, as another client would, if the Lease exists.
    pub(super) fn label(&mut self, value: u64) {
        if let Some(mut lease) = self.lease.take() {
            lease["metadata"]["labels"] = json!({ "changed": value.to_string() });
            let uid = lease["metadata"]["uid"].as_str().unwrap().to_owned();
            self.store(lease, &uid);
        }
    }

    fn store(&mut self, mut lease: Value, uid: &str) -> Value {
        self.version += 1;
        lease["metadata"]["uid"] = json!(uid);
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease.insert(lease).clone()
    }
}
