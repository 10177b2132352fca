//! Classifies the errors of the driver.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind as RedisErrorKind, RedisError};

use crate::types::error::{EngineError, ErrorKind, Kind, Reason};

/// Converts an error that occurred before a command was sent to the server at `address`.
pub(super) fn connect_fault(address: &str, error: &RedisError) -> EngineError {
    let kind = match error.kind() {
        RedisErrorKind::AuthenticationFailed | RedisErrorKind::InvalidClientConfig => Kind::Refused,
        _ => reported_kind(error).unwrap_or(Kind::Absent),
    };
    to_fault(kind, address, error)
}

/// Converts an error of a command that may have reached the server.
pub(super) fn command_fault(address: &str, error: &RedisError) -> EngineError {
    to_fault(reported_kind(error).unwrap_or(Kind::Unsure), address, error)
}

fn to_fault(kind: Kind, address: &str, error: &RedisError) -> EngineError {
    let text = format!("{address}: {error}");
    let source = match (error.code(), error.kind()) {
        (Some("NOAUTH"), _) => {
            let text = format!(
                "{address}: the server requires a password; set REDISCLI_AUTH, or add it to the \
                 address [NOAUTH]"
            );
            Reason::new(ErrorKind::Authentication, text).into()
        }
        (Some("WRONGPASS"), _) | (_, RedisErrorKind::AuthenticationFailed) => {
            Reason::new(ErrorKind::Authentication, text).into()
        }
        // The code of the error comes from the server.
        (Some(_), _) if kind == Kind::Refused => Reason::new(ErrorKind::Refused, text).into(),
        (Some(_), _) => Reason::new(ErrorKind::Unreachable, text).into(),
        // An untrusted certificate causes such an error, for example.
        _ if has_invalid_data(error) => Reason::new(ErrorKind::Tls, text).into(),
        _ => text.into(),
    };
    EngineError { kind, source }
}

/// Returns true if TLS has rejected data of the server.
fn has_invalid_data(error: &RedisError) -> bool {
    // The driver wraps the causes of its errors in `Arc`.
    let cause =
        error.source().and_then(|source| source.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    let cause = cause.and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|error| error.kind() == io::ErrorKind::InvalidData)
}

/// Returns the error about an answer that no script of requeue gives.
pub(super) fn unknown_format() -> EngineError {
    EngineError::unsure("the server's answer has an unknown format")
}

/// Returns the kind of an error that the server has reported, or `None` if the server has reported none. The failed
/// command had no effect, because a script begins to write only when no later step can fail.
fn reported_kind(error: &RedisError) -> Option<Kind> {
    // Older servers report the codes of scripts in the text of the error. These codes mean that another server has the
    // data, or that this server now serves no client.
    const ABSENT: [&str; 8] = [
        "LOADING",
        "CLUSTERDOWN",
        "MASTERDOWN",
        "MOVED",
        "ASK",
        "UNBLOCKED",
        "NOSCRIPT",
        "max number of clients",
    ];
    const UNABLE: [&str; 7] = [
        // alive.lua raises this error while a drop is in progress. The drop may still fail.
        "SEALED",
        "TRYAGAIN",
        "READONLY",
        "OOM",
        "BUSY",
        "NOREPLICAS",
        "MISCONF",
    ];
    if !matches!(error.kind(), RedisErrorKind::Server(_) | RedisErrorKind::Extension) {
        return None;
    }
    let (code, detail) = (error.code().unwrap_or(""), error.detail().unwrap_or(""));
    let of_now = |word: &&str| code == *word || code == "ERR" && detail.contains(*word);
    if of_now(&"DROPPED") {
        return Some(Kind::Dropped);
    }
    Some(if ABSENT.iter().any(of_now) {
        Kind::Absent
    } else if UNABLE.iter().any(of_now) {
        Kind::Unable
    } else {
        Kind::Refused
    })
}
