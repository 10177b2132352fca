//! Waits for the answers of a store, and converts its errors to responses.

use std::error::Error;
use std::time::Duration;

use axum::http::StatusCode;
use requeue_store::{ErrorKind, State, UpdateError};
use tokio::time::timeout;

use crate::api::State as RowState;
use crate::params::{Problem, with_source};

/// The time limit of most requests to the store.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The time limit of requests that read the state of the queue, which consists of a few
/// rows. If the store needs longer, `/readyz` reports it as unreachable.
pub(super) const PATIENCE_FOR_STATE: Duration = Duration::from_secs(5);

pub(super) async fn await_answer<T, E: Error>(
    patience: Duration,
    answered: impl Future<Output = Result<T, E>>,
) -> Result<T, Problem> {
    let late = "the store did not answer in time; try again later";
    let late = |_| Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, late));
    timeout(patience, answered).await.map_or_else(late, |answer| answer.map_err(store_failure))
}

/// Returns the answer of the store. Returns `None` after an error or a short time
/// limit, because the response is also useful without this answer.
pub(super) async fn answer_soon<T, E>(answered: impl Future<Output = Result<T, E>>) -> Option<T> {
    timeout(PATIENCE_FOR_STATE, answered).await.ok()?.ok()
}

/// Returns the response for a failed request to the store. The store may have changed
/// some of the keys.
pub(super) fn store_failure(error: impl Error) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, with_source(error))
}

/// Returns the response for a failed change of settings.
pub(super) fn update_failure(error: UpdateError) -> Problem {
    match error.kind() {
        ErrorKind::Invalid => Problem::new(StatusCode::BAD_REQUEST, error.to_string()),
        // The status says that a repetition of the request would also fail.
        ErrorKind::Refused | ErrorKind::Dropped => {
            Problem::new(StatusCode::CONFLICT, with_source(error))
        }
        _ => store_failure(error),
    }
}

/// Converts the state that a request names. Returns an error if keys in a store cannot
/// have this state.
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
