//! Waits for answers of a store, and converts its errors to responses.

use std::error::Error;
use std::time::Duration;

use axum::http::StatusCode;
use requeue_store::{ErrorKind, State, UpdateError};
use tokio::time::timeout;

use crate::api::State as RowState;
use crate::params::{Problem, with_source};

/// The time limit of a request to the store.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The time limit of the requests for the state of the queue, which read a few rows. For `/readyz`, a slower store is
/// unreachable.
pub(super) const PATIENCE_FOR_STATE: Duration = Duration::from_secs(5);

pub(super) async fn await_answer<T, E: Error>(
    patience: Duration,
    answered: impl Future<Output = Result<T, E>>,
) -> Result<T, Problem> {
    let late = "the store did not answer in time; try again later";
    let late = |_| Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, late));
    timeout(patience, answered).await.map_or_else(late, |answer| answer.map_err(store_failure))
}

/// Returns an answer without which the response is still useful.
pub(super) async fn answer_soon<T, E>(answered: impl Future<Output = Result<T, E>>) -> Option<T> {
    timeout(PATIENCE_FOR_STATE, answered).await.ok()?.ok()
}

/// Returns the response for a failed request. Some of the keys may have been changed.
pub(super) fn store_failure(error: impl Error) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, with_source(error))
}

/// Returns the response for a failed change of settings.
pub(super) fn update_failure(error: UpdateError) -> Problem {
    match error.kind() {
        ErrorKind::Invalid => Problem::new(StatusCode::BAD_REQUEST, error.to_string()),
        // A repetition would fail in the same way.
        ErrorKind::Refused | ErrorKind::Dropped => {
            Problem::new(StatusCode::CONFLICT, with_source(error))
        }
        _ => store_failure(error),
    }
}

/// Returns the state of keys in a store that a request names.
pub(super) fn stored_state(state: RowState) -> Result<State, Problem> {
    match state {
        RowState::Ready => Ok(State::Ready),
        RowState::Waiting => Ok(State::Waiting),
        RowState::Running => Ok(State::InFlight),
        RowState::Parked => Ok(State::Parked),
        RowState::Damaged => Ok(State::Damaged),
        RowState::BackingOff | RowState::Idle => {
            let error = "a queue in a store counts keys that back off as waiting; use \
                         state=waiting and failed=true";
            Err(Problem::parameter("state", error))
        }
    }
}
