//! Classifies the driver's errors. An operation has taken effect, has not taken effect, or may have taken effect.

use std::error::Error as _;
use std::io;

use deadpool_postgres::{HookError, PoolError};
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::guard;
use crate::types::error::{EngineError, ErrorKind, Kind, Reason, with_sources};

/// Prepared statements and LISTEN are a part of the session. This pooler does not keep sessions, which the message
/// explains.
pub(super) const POOLED: &str = "a pooler, such as pgbouncer, changes sessions between transactions; \
     add pooler=transaction to the options of the address, and listen=HOST:PORT with the address \
     of the server itself";

const STATEMENTS: &str = "the pooler has pool_mode = statement, which does not work with requeue; change it to \
     transaction, and add pooler=transaction to the options of the address, or change it to session";
const NO_PASSWORD: &str =
    "the server requires a password; set PGPASSWORD, or use a password file, such as ~/.pgpass";

/// The SQLSTATE of an operation on a dropped queue: see `requeue.check_queue`.
const DROPPED: &str = "RQ001";

/// Converts the error of a connection attempt. Without a connection, no operation has taken effect.
pub(super) fn of_connecting(error: PoolError) -> EngineError {
    match error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
            match refusal_kind(&error) {
                Some(kind) => Reason::new(kind, error_text(&error)).into(),
                None => EngineError {
                    kind: kind_of_connecting(&error),
                    source: error_text(&error).into(),
                },
            }
        }
        PoolError::Timeout(_) => EngineError::absent("the server did not answer in time"),
        other => EngineError::absent(other.to_string()),
    }
}

/// Returns the kind of the error if the server or TLS has certainly refused the connection, and `None` otherwise.
fn refusal_kind(error: &Error) -> Option<ErrorKind> {
    if let Some(code) = error.code() {
        return Some(match *code {
            _ if is_unsuitable_pooler(error) => ErrorKind::Refused,
            SqlState::INVALID_CATALOG_NAME => ErrorKind::Refused,
            // The codes of class 28 mean an invalid authorization.
            _ if code.code().starts_with("28") => ErrorKind::Authentication,
            // The server is starting or stopping, or permits no further connection.
            _ => ErrorKind::Unreachable,
        });
    }
    if guard::find_refusal(error).is_some() {
        return Some(ErrorKind::Tls);
    }
    if lacks_password(error) {
        return Some(ErrorKind::Authentication);
    }
    // The driver's errors have no public kinds, so their texts are compared.
    let text = error.to_string();
    if text == "authentication error" {
        return Some(ErrorKind::Authentication);
    }
    let is_tls = text == "error performing TLS handshake" || has_invalid_data(error);
    is_tls.then_some(ErrorKind::Tls)
}

/// Returns true if the server requires a password and the client has none.
fn lacks_password(error: &Error) -> bool {
    let cause = error.source().map(ToString::to_string);
    error.to_string() == "invalid configuration" && cause.as_deref() == Some("password missing")
}

/// Returns true if the error comes from a pgbouncer with `pool_mode = statement`, which permits no transactions.
fn is_unsuitable_pooler(error: &Error) -> bool {
    error.as_db_error().is_some_and(|error| error.message().contains("statement pooling mode"))
}

/// Returns true if TLS has rejected data of the server, such as its certificate.
fn has_invalid_data(error: &Error) -> bool {
    let cause = with_sources(error).find_map(|error| error.downcast_ref::<io::Error>());
    cause.is_some_and(|error| error.kind() == io::ErrorKind::InvalidData)
}

/// Classifies an error of a connection attempt that the server has not answered.
fn kind_of_connecting(error: &Error) -> Kind {
    let may_change = with_sources(error).any(|error| error.is::<io::Error>())
        || error.is_closed()
        || error.to_string().contains("timeout");
    if may_change { Kind::Absent } else { Kind::Refused }
}

/// Converts the error of a statement. Each statement is a separate transaction.
pub(super) fn of_statement(error: &Error) -> EngineError {
    EngineError { kind: statement_kind(error), source: error_text(error).into() }
}

fn statement_kind(error: &Error) -> Kind {
    let Some(code) = error.code() else {
        // An I/O error means that the connection was closed. Any other source means that a parameter did not fit the
        // statement, or that a result did not have the expected type.
        let ours = error.source().is_some_and(|source| !source.is::<io::Error>());
        return if ours { Kind::Refused } else { Kind::Unsure };
    };
    match *code {
        // A server that reports one of these errors has not committed the statement.
        SqlState::ADMIN_SHUTDOWN | SqlState::CANNOT_CONNECT_NOW => Kind::Absent,
        SqlState::QUERY_CANCELED | SqlState::READ_ONLY_SQL_TRANSACTION | SqlState::IO_ERROR => {
            Kind::Unable
        }
        SqlState::LOCK_NOT_AVAILABLE => Kind::Locked,
        ref code if code.code() == DROPPED => Kind::Dropped,
        // A server that crashes may stop after the commit and before the answer.
        SqlState::CRASH_SHUTDOWN => Kind::Unsure,
        ref code => match &code.code()[..2] {
            // Class 40 consists of serialization failures and deadlocks. Class 53 means that memory, disk space or
            // connections are exhausted.
            "40" | "53" => Kind::Unable,
            "08" if is_unsuitable_pooler(error) => Kind::Refused,
            "08" => Kind::Unsure,
            _ => Kind::Refused,
        },
    }
}

/// Returns the server's message and hint. The details are omitted, because they may contain rows and thus keys.
fn error_text(error: &Error) -> String {
    if let Some(refusal) = guard::find_refusal(error) {
        return refusal.to_string();
    }
    if lacks_password(error) {
        return NO_PASSWORD.to_owned();
    }
    let Some(reported) = error.as_db_error() else {
        let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        let error = error.to_string();
        return if error.ends_with(&source) { error } else { format!("{error}{source}") };
    };
    if is_unsuitable_pooler(error) {
        return format!("{STATEMENTS} ({})", reported.message());
    }
    if matches!(
        *reported.code(),
        SqlState::DUPLICATE_PSTATEMENT | SqlState::INVALID_SQL_STATEMENT_NAME
    ) {
        return format!("{POOLED} ({}) [{}]", reported.message(), reported.code().code());
    }
    let hint = reported.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{}{hint} [{}]", reported.message(), reported.code().code())
}
