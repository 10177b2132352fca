//! The name of a worker. The store keeps the name with each key that the worker has in flight.

use super::text::prefix;

/// The maximum length of a name in bytes.
const MAX_WORKER: usize = 100;

/// Returns the reason why the name of a worker is invalid, or `None` if it is valid.
pub(crate) fn invalid_worker(label: &str) -> Option<String> {
    if label.is_empty() || label.len() > MAX_WORKER || label.contains(char::is_control) {
        return Some(format!(
            "invalid worker name {label:?}: use 1 to {MAX_WORKER} bytes \
             without control characters"
        ));
    }
    None
}

/// Returns the default name of a worker: the name of this machine and the id of this process.
#[must_use]
pub fn this_process() -> String {
    let host = host_name();
    let host: String = host.chars().filter(|char| !char.is_control()).collect();
    // The remaining 20 bytes are for the colon and the process id.
    let host = prefix(&host, MAX_WORKER - 20);
    format!("{}:{}", if host.is_empty() { "localhost" } else { host }, std::process::id())
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}
