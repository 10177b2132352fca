//! What the driver's errors mean.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError};

use crate::types::error::{ConnectErrorKind, EngineError, Kind, Reason};

/// What went wrong before a command was sent, at the server with this address.
pub(super) fn unconnected(address: &str, error: &RedisError) -> EngineError {
    let kind = match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => Kind::Refused,
        _ => said(error).unwrap_or(Kind::Absent),
    };
    fault(kind, address, error)
}

/// What went wrong when it had been sent, perhaps.
pub(super) fn failed(address: &str, error: &RedisError) -> EngineError {
    fault(said(error).unwrap_or(Kind::Unsure), address, error)
}

fn fault(kind: Kind, address: &str, error: &RedisError) -> EngineError {
    let text = format!("{address}: {error}");
    let source = match (error.code(), error.kind()) {
        (Some("NOAUTH" | "WRONGPASS"), _) | (_, ErrorKind::AuthenticationFailed) => {
            Reason::new(ConnectErrorKind::Authentication, text).into()
        }
        // The server has said so.
        (Some(_), _) if kind == Kind::Refused => {
            Reason::new(ConnectErrorKind::Refused, text).into()
        }
        (Some(_), _) => Reason::new(ConnectErrorKind::Unreachable, text).into(),
        // Such as a certificate that is not trusted.
        _ if has_invalid_data(error) => Reason::new(ConnectErrorKind::Tls, text).into(),
        _ => text.into(),
    };
    EngineError { kind, source }
}

/// Whether TLS has rejected what it got.
fn has_invalid_data(error: &RedisError) -> bool {
    // The driver shares the causes of its errors.
    let cause =
        error.source().and_then(|source| source.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    let cause = cause.and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|error| error.kind() == io::ErrorKind::InvalidData)
}

/// An answer that no script of ours gives.
pub(super) fn garbled() -> EngineError {
    EngineError::unsure("the server's answer is not understood")
}

/// If the server itself said so: then nothing has happened. Scripts write at their end, after which
/// nothing can fail.
fn said(error: &RedisError) -> Option<Kind> {
    // Of scripts, older servers say it in the text.
    const FOR_NOW: [&str; 15] = [
        // By alive.lua: a drop is in progress, which may yet be refused.
        "SEALED",
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
    if of_now(&"DROPPED") {
        return Some(Kind::Dropped);
    }
    Some(if FOR_NOW.iter().any(of_now) { Kind::Absent } else { Kind::Refused })
}
