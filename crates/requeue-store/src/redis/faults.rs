//! What the driver's errors mean.

use redis::{ErrorKind, RedisError};

use crate::error::{Fault, Kind};

/// What went wrong before a command was sent, at the server with this address.
pub(super) fn unconnected(address: &str, error: &RedisError) -> Fault {
    let kind = match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => Kind::Refused,
        _ => said(error).unwrap_or(Kind::Absent),
    };
    Fault { kind, source: format!("{address}: {error}").into() }
}

/// What went wrong when it had been sent, perhaps.
pub(super) fn failed(address: &str, error: &RedisError) -> Fault {
    let kind = said(error).unwrap_or(Kind::Unsure);
    Fault { kind, source: format!("{address}: {error}").into() }
}

/// An answer that no script of ours gives.
pub(super) fn garbled() -> Fault {
    Fault::unsure("the server's answer is not understood")
}

/// If the server itself said so: then nothing has happened. Scripts write at their end, after which
/// nothing can fail.
fn said(error: &RedisError) -> Option<Kind> {
    // Of scripts, older servers say it in the text.
    const FOR_NOW: [&str; 14] = [
        "LOADING",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "MASTERDOWN",
        "READONLY",
        "OOM",
        "BUSY",
        "NOREPLICAS",
        "MISCONF",
        "MOVED",
        "ASK",
        "UNBLOCKED",
        "NOSCRIPT",
        "max number of clients",
    ];
    if !matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) {
        return None;
    }
    let (code, detail) = (error.code().unwrap_or(""), error.detail().unwrap_or(""));
    let of_now = |word: &&str| code == *word || code == "ERR" && detail.contains(*word);
    Some(if FOR_NOW.iter().any(of_now) { Kind::Absent } else { Kind::Refused })
}
