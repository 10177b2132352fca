//! What an error says about whether something has happened.

use std::error::Error as _;
use std::io;

use deadpool_postgres::{HookError, PoolError};
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::error::{Fault, Kind};

/// There is no connection, so that nothing has happened.
pub(super) fn of_connecting(error: PoolError) -> Fault {
    match error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
            let kind = if is_hopeless(&error) { Kind::Refused } else { Kind::Absent };
            Fault { kind, source: said(&error).into() }
        }
        other => Fault::absent(other.to_string()),
    }
}

/// Whether the next try will be told the same.
fn is_hopeless(error: &Error) -> bool {
    if let Some(code) = error.code() {
        // Not who one may be, or to no such database.
        return code.code().starts_with("28") || *code == SqlState::INVALID_CATALOG_NAME;
    }
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(error) = inner.downcast_ref::<io::Error>() {
            // TLS says so of certificates.
            return error.kind() == io::ErrorKind::InvalidData;
        }
        source = inner.source();
    }
    !error.is_closed() && !error.to_string().contains("timeout")
}

/// A statement has failed. Each is a transaction of its own.
pub(super) fn of_statement(error: &Error) -> Fault {
    Fault { kind: kind(error), source: said(error).into() }
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
    let Some(told) = error.as_db_error() else {
        let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        let error = error.to_string();
        return if error.ends_with(&source) { error } else { format!("{error}{source}") };
    };
    let hint = told.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{}{hint} [{}]", told.message(), told.code().code())
}
