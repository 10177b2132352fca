//! What an error says about whether something has happened.

use std::error::Error as _;
use std::io;

use deadpool_postgres::{HookError, PoolError};
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::guard;
use crate::types::error::{ConnectErrorKind, EngineError, Kind, Reason};

/// Session state, on which prepared statements and LISTEN depend, does not last.
pub(super) const POOLED: &str = "a pooler, such as pgbouncer, changes sessions between transactions; \
     add pooler=transaction to the options of the address, and listen=HOST:PORT with the address \
     of the server itself";

/// What functions of the schema say of a queue that was dropped: see `requeue.check_queue`.
const DROPPED: &str = "RQ001";

/// There is no connection, so that nothing has happened.
pub(super) fn of_connecting(error: PoolError) -> EngineError {
    match error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
            match reason(&error) {
                Some(kind) => Reason::new(kind, said(&error)).into(),
                None => {
                    EngineError { kind: kind_of_connecting(&error), source: said(&error).into() }
                }
            }
        }
        PoolError::Timeout(_) => EngineError::absent("the server did not answer in time"),
        other => EngineError::absent(other.to_string()),
    }
}

/// Why the server, or TLS, lets nobody in, if that is certain.
fn reason(error: &Error) -> Option<ConnectErrorKind> {
    if let Some(code) = error.code() {
        return Some(match *code {
            SqlState::INVALID_CATALOG_NAME => ConnectErrorKind::Refused,
            // Invalid authorization.
            _ if code.code().starts_with("28") => ConnectErrorKind::Authentication,
            // It starts, stops or has no connection left.
            _ => ConnectErrorKind::Unreachable,
        });
    }
    if guard::refusal(error).is_some() {
        return Some(ConnectErrorKind::Tls);
    }
    // The driver's errors have no public kinds.
    let text = error.to_string();
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    let no_password = text == "invalid configuration" && cause == "password missing";
    if text == "authentication error" || no_password {
        return Some(ConnectErrorKind::Authentication);
    }
    let is_tls = text == "error performing TLS handshake" || has_invalid_data(error);
    is_tls.then_some(ConnectErrorKind::Tls)
}

/// Whether TLS has rejected what it got, such as a certificate.
fn has_invalid_data(error: &Error) -> bool {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(error) = inner.downcast_ref::<io::Error>() {
            return error.kind() == io::ErrorKind::InvalidData;
        }
        source = inner.source();
    }
    false
}

/// Without a connection, and without a word of the server.
fn kind_of_connecting(error: &Error) -> Kind {
    let mut source = error.source();
    while let Some(inner) = source {
        if inner.is::<io::Error>() {
            return Kind::Absent;
        }
        source = inner.source();
    }
    let may_change = error.is_closed() || error.to_string().contains("timeout");
    if may_change { Kind::Absent } else { Kind::Refused }
}

/// A statement has failed. Each is a transaction of its own.
pub(super) fn of_statement(error: &Error) -> EngineError {
    EngineError { kind: kind(error), source: said(error).into() }
}

fn kind(error: &Error) -> Kind {
    let Some(code) = error.code() else {
        // Its values are not what the statement takes, or its answer not what was expected; else
        // the connection has ended.
        let ours = error.source().is_some_and(|source| !source.is::<io::Error>());
        return if ours { Kind::Refused } else { Kind::Unsure };
    };
    match *code {
        // Where the server says so, it has not committed.
        SqlState::ADMIN_SHUTDOWN
        | SqlState::CANNOT_CONNECT_NOW
        | SqlState::QUERY_CANCELED
        | SqlState::READ_ONLY_SQL_TRANSACTION
        | SqlState::IO_ERROR => Kind::Absent,
        SqlState::LOCK_NOT_AVAILABLE => Kind::Locked,
        ref code if code.code() == DROPPED => Kind::Dropped,
        // At once, perhaps between its commit and its answer.
        SqlState::CRASH_SHUTDOWN => Kind::Unsure,
        ref code => match &code.code()[..2] {
            // Serialization and deadlock; no memory, disk or connections left.
            "40" | "53" => Kind::Absent,
            "08" => Kind::Unsure,
            _ => Kind::Refused,
        },
    }
}

/// What the server says, and what else it knows. Details may have rows in them, and those keys.
fn said(error: &Error) -> String {
    if let Some(refusal) = guard::refusal(error) {
        return refusal.to_string();
    }
    let Some(told) = error.as_db_error() else {
        let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        let error = error.to_string();
        return if error.ends_with(&source) { error } else { format!("{error}{source}") };
    };
    if matches!(*told.code(), SqlState::DUPLICATE_PSTATEMENT | SqlState::INVALID_SQL_STATEMENT_NAME)
    {
        return format!("{POOLED} ({}) [{}]", told.message(), told.code().code());
    }
    let hint = told.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{}{hint} [{}]", told.message(), told.code().code())
}
