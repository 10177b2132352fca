//! Tenants that share the workers of one queue.
//!
//! The key of an export is `TENANT/EXPORT`, and the queue takes the tenant from it. Tenants take turns. Each tenant has a
//! limit of concurrent exports, and can have a rate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use requeue::workers::{Action, Context, Error, Workers};
use requeue_store::{Added, Key, Queue, Rate, Store};

/// The agreement with a tenant. A real program reads it from its database.
#[derive(Clone, Copy, Debug)]
pub struct Tenant {
    /// The name, as in the keys.
    pub name: &'static str,
    /// The maximum number of exports that run at the same time, over all processes.
    pub limit: u32,
    /// The maximum number of starts per second, over all processes.
    pub starts_per_second: Option<u32>,
}

/// All tenants.
pub const TENANTS: [Tenant; 3] = [
    Tenant { name: "acme", limit: 4, starts_per_second: None },
    Tenant { name: "trial", limit: 2, starts_per_second: Some(5) },
    Tenant { name: "zeta", limit: 4, starts_per_second: None },
];

/// An export that was not added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// The key does not name a tenant and an export.
    #[error("invalid export {0:?}: use TENANT/EXPORT, such as acme/17")]
    Invalid(String),
    /// The tenant does not exist.
    #[error("{0:?}: unknown tenant; use one of {names}", names = TENANTS.map(|tenant| tenant.name).join(", "))]
    UnknownTenant(String),
    /// The store has not confirmed the add. Repeating it is harmless.
    #[error(transparent)]
    Store(#[from] requeue_store::AddError),
}

/// Opens the queue, and sets the limits and rates of the tenants.
///
/// # Errors
///
/// The store cannot be reached, or the queue has other groups.
pub async fn open(store: &Store) -> Result<Queue, Box<dyn std::error::Error + Send + Sync>> {
    let queue = store.queue("exports").group_by("^[^/]*").max_failures(10).open().await?;
    for tenant in TENANTS {
        let group = queue.group(tenant.name);
        group.set_limit(Some(tenant.limit)).await?;
        let rate = tenant.starts_per_second.map(|starts| Rate::new(starts, Duration::from_secs(1)));
        group.set_rate(rate).await?;
    }
    Ok(queue)
}

/// Adds exports. If one of them is invalid, none is added.
///
/// # Errors
///
/// A key is not valid, its tenant is unknown, or the store cannot be reached.
pub async fn add(queue: &Queue, exports: &[String]) -> Result<Vec<Added>, AddError> {
    for export in exports {
        let tenant = match export.split_once('/') {
            Some((tenant, name)) if !tenant.is_empty() && !name.is_empty() => tenant,
            _ => return Err(AddError::Invalid(export.clone())),
        };
        if !TENANTS.iter().any(|known| known.name == tenant) {
            return Err(AddError::UnknownTenant(export.clone()));
        }
    }
    Ok(queue.add_all(exports.iter().map(String::as_str)).await?)
}

/// The observed runs of one tenant.
#[derive(Clone, Default, Debug)]
pub struct Runs {
    /// The position of each run in the order of all starts, from 1.
    pub starts: Vec<usize>,
    /// The exports that run now.
    pub running: u32,
    /// The most exports that have run at the same time.
    pub most_running: u32,
}

/// The observed runs of all tenants.
pub type Report = Arc<Mutex<BTreeMap<String, Runs>>>;

/// Runs exports with 8 workers until the queue is empty.
pub async fn work(queue: Queue, report: Report) {
    // A service uses `run_until(signal)` instead.
    queue.shut_down_when_idle();
    let handler = move |key: Key, _: Context| run(key, Arc::clone(&report));
    Workers::new(queue, handler).concurrency(8).run().await;
}

async fn run(key: Key, report: Report) -> Result<Action, Error> {
    let tenant = key.as_str().and_then(|key| key.split_once('/')).map(|(tenant, _)| tenant);
    let tenant = tenant.ok_or_else(|| Error::terminal("the key names no tenant"))?.to_owned();
    {
        let mut report = report.lock();
        let position = 1 + report.values().map(|runs| runs.starts.len()).sum::<usize>();
        let runs = report.entry(tenant.clone()).or_default();
        runs.starts.push(position);
        runs.running += 1;
        runs.most_running = runs.most_running.max(runs.running);
    }
    // The work: read what the export needs now, and write it. A second run must be harmless.
    tokio::time::sleep(Duration::from_millis(5)).await;
    if let Some(runs) = report.lock().get_mut(&tenant) {
        runs.running -= 1;
    }
    Ok(Action::succeed())
}
