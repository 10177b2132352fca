//! Handles the requests of workers: they claim keys, renew their leases, and end their claims.

use std::convert::Infallible;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{self, HeaderValue};
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use futures_util::stream;

use crate::actions::{check_count, check_token, read_body, run_to_end};
use crate::api::{
    ClaimList, ClaimOutcome, ClaimResult, ClaimResults, Endings, NamedClaim, NamedKey, NewClaim,
    Renewals, Status, WorkAction,
};
use crate::control::FailedRun;
use crate::params::{Problem, json};
use crate::source::{Claim, Claimed, Ending, Ticket};
use crate::state::SiteState;

/// The limits of a claim: the length of the worker's name in bytes, the number of keys, the time to
/// wait, and the duration of the leases. Times are in seconds.
const MAX_WORKER: usize = 100;
const MAX: RangeInclusive<usize> = 1..=256;
const WAIT: RangeInclusive<f64> = 0.0..=60.0;
const LEASE: RangeInclusive<f64> = 1.0..=3600.0;
/// The shortest time for which a claim waits. A client that sends one claim after another therefore
/// sends at most ten requests per second on each connection while no key is ready.
const LEAST_WAIT: Duration = Duration::from_millis(100);

type Site = State<Arc<SiteState>>;

pub(crate) async fn answer_worker(
    State(site): Site,
    request: Request,
    action: WorkAction,
) -> Result<Response, Problem> {
    let remote = check_token(&site, &request)?;
    let ending: fn(FailedRun) -> Ending = match action {
        WorkAction::Claim => return claim(&site, read_body(request, remote).await?.0).await,
        WorkAction::Renew => return renew(&site, read_body(request, remote).await?.0).await,
        WorkAction::Complete => |_| Ending::Complete,
        WorkAction::Fail => Ending::Fail,
        WorkAction::Release => |_| Ending::Release,
    };
    let (Endings { claims }, _) = read_body(request, remote).await?;
    let claims = check_count("claims", claims)?.into_iter().map(|claim| {
        let (ticket, failure) = claim.into_parts(action == WorkAction::Fail)?;
        Ok((ticket, ending(failure)))
    });
    let claims = claims.collect::<Result<Vec<_>, Problem>>()?;
    // The claims are ended even if the client disconnects, because a dropped item counts as a
    // failure.
    let ended = run_to_end(async move {
        let ended =
            claims.into_iter().map(|(ticket, ending)| site.source.end_claim(ticket, ending));
        Ok(join_all(ended).await)
    });
    Ok(answer_claims(ended.await?))
}

// --- Claims --------------------------------------------------------------------------------------

async fn claim(site: &SiteState, request: NewClaim) -> Result<Response, Problem> {
    let NewClaim { worker, max, wait, lease, until_empty } = request;
    if worker.is_empty() || worker.len() > MAX_WORKER || worker.contains(char::is_control) {
        let error = format!("expected 1 to {MAX_WORKER} bytes without control characters");
        return Err(Problem::parameter("worker", &error));
    }
    if !MAX.contains(&max) {
        let error = format!("expected a number from {} to {}", MAX.start(), MAX.end());
        return Err(Problem::parameter("max", &error));
    }
    let wait = duration_within("wait", wait, WAIT)?.max(LEAST_WAIT);
    let lease = duration_within("lease", lease, LEASE)?;
    let _permit =
        site.begin_claim().ok_or_else(|| Problem::busy("too many claims wait for keys"))?;
    let mut ended = site.ended.subscribe();
    let claim = Claim { worker, max, wait, lease };
    let claimed = tokio::select! {
        claimed = site.source.claim_keys(&claim) => claimed,
        _ = ended.wait_for(|&ended| ended) => Err(Problem::stopped()),
    };
    // A queue in memory may shut down because it is empty. With `until_empty`, the client then
    // learns that it is empty, instead of receiving an error.
    let has_keys = claimed.as_ref().is_ok_and(|claimed| !claimed.keys.is_empty());
    if until_empty && !has_keys && site.source.is_empty().await? {
        return Ok(json(&ClaimList { claims: Vec::new(), empty: true }));
    }
    let claimed = claimed?;
    match site.status() {
        _ if !claimed.keys.is_empty() => {}
        Status::ShutDown | Status::Ended => return Err(Problem::stopped()),
        Status::Unreachable => return Err(Problem::busy("the store does not answer")),
        Status::Open | Status::Paused | Status::Closed => {}
    }
    Ok(answer_claim(claimed))
}

/// Returns a response with the claimed keys. When the body is written, the keys are left to the
/// client. If the connection is closed earlier, the drop of the body returns the keys to the queue.
fn answer_claim(Claimed { keys, held }: Claimed) -> Response {
    // Serialization does not fail for these types.
    let body = serde_json::to_vec(&ClaimList { claims: keys, empty: false }).unwrap_or_default();
    let length = HeaderValue::from(body.len());
    let body = stream::once(async move {
        held.hand_over();
        Ok::<_, Infallible>(body)
    });
    let kind = HeaderValue::from_static("application/json");
    let headers = [(header::CONTENT_TYPE, kind), (header::CONTENT_LENGTH, length)];
    (headers, Body::from_stream(body)).into_response()
}

fn duration_within(
    name: &str,
    seconds: f64,
    range: RangeInclusive<f64>,
) -> Result<Duration, Problem> {
    let valid = Duration::try_from_secs_f64(seconds).ok().filter(|_| range.contains(&seconds));
    valid.ok_or_else(|| {
        let error = format!("expected seconds from {} to {}", range.start(), range.end());
        Problem::parameter(name, &error)
    })
}

// --- Held claims -----------------------------------------------------------------------------------

async fn renew(site: &SiteState, request: Renewals) -> Result<Response, Problem> {
    let lease = duration_within("lease", request.lease, LEASE)?;
    let claims = check_count("claims", request.claims)?.into_iter();
    let claims = claims.map(|claim| Ok(claim.into_parts(false)?.0));
    let claims = claims.collect::<Result<_, Problem>>()?;
    Ok(answer_claims(site.source.renew_claims(claims, lease).await?))
}

impl NamedClaim {
    /// Returns the claim and the description of its failure. If `may_fail` is false, the request
    /// must not describe a failure.
    fn into_parts(self, may_fail: bool) -> Result<(Ticket, FailedRun), Problem> {
        let wrong = |error: &str| Problem::parameter("claims", error);
        let Self { key, key_base64, token, error, exit_status, output, after, give_up } = self;
        let has_failure = error.is_some() || exit_status.is_some() || output.is_some();
        if !may_fail && (has_failure || after.is_some() || give_up) {
            let why = "only `fail` has error, exit_status, output, after and give_up";
            return Err(wrong(why));
        }
        let no_token =
            || wrong(&format!("token {token:?} is not a number; send the token of the claim"));
        let token = token.parse().map_err(|_| no_token())?;
        let after = after.map(Duration::try_from_secs_f64).transpose();
        let after = after.map_err(|_| wrong("after is not a duration"))?;
        let key = NamedKey { key, key_base64 }.into_bytes("claims")?;
        let failure = FailedRun { error, exit_status, output, after, gives_up: give_up };
        Ok((Ticket { key, token }, failure))
    }
}

fn answer_claims(results: Vec<ClaimResult>) -> Response {
    let status = match () {
        () if results.iter().any(|it| it.result == ClaimOutcome::Unknown) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        () if results.iter().any(|it| it.error.is_some()) => StatusCode::CONFLICT,
        () => StatusCode::OK,
    };
    let mut errors = results.iter().filter_map(|it| it.error.as_deref());
    let error = errors.next().map(|first| match errors.count() {
        0 => first.to_owned(),
        more => format!("{first} (and {more} more errors)"),
    });
    (status, json(&ClaimResults { error, results })).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use axum::http::header::AUTHORIZATION;
    use futures_util::FutureExt;
    use requeue::Queue;
    use serde_json::{Value, json};

    use super::*;
    use crate::{AccessToken, Site};

    const TOKEN: &str = "0123456789abcdef";

    type Answer = std::pin::Pin<Box<dyn Future<Output = Result<Response, Problem>> + Send>>;

    fn site(queue: &Queue<String>) -> Site {
        let token = AccessToken::new(TOKEN).unwrap();
        // With 4 connections, one claim can wait.
        Site::builder(queue.clone()).admin(token).max_connections(4).build()
    }

    fn ask(site: &Site, path: &str, action: WorkAction, body: &Value) -> Answer {
        let request = Request::builder()
            .uri(format!("/api/v1/{path}"))
            .header(header::CONTENT_TYPE, "application/json")
            .header(AUTHORIZATION, format!("Bearer {TOKEN}"))
            .body(body.to_string().into())
            .unwrap();
        Box::pin(answer_worker(State(Arc::clone(site.state())), request, action))
    }

    fn claim(site: &Site) -> Answer {
        ask(site, "claim", WorkAction::Claim, &json!({ "worker": "w", "wait": 60, "lease": 10 }))
    }

    async fn read(answer: Response) -> Value {
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_whose_answer_is_not_written_returns_its_keys() {
        let queue = Queue::new();
        queue.add("a".to_owned());
        let site = site(&queue);
        let answer = claim(&site).await.unwrap();
        assert_eq!(queue.states().in_flight, 1);
        drop(answer);
        assert_eq!((queue.states().ready, queue.failures("a")), (1, 0));

        // The client disconnects while its claim waits for a key.
        let item = queue.try_get().unwrap();
        let mut waiting = claim(&site);
        assert!((&mut waiting).now_or_never().is_none());
        // A second claim that waits is refused, because other requests need the remaining
        // connections.
        let refused = claim(&site).await.unwrap_err().into_response();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.headers().contains_key(header::RETRY_AFTER));
        drop(waiting);
        item.complete(requeue::Completion::Release);
        assert_eq!(queue.states().ready, 1);

        // The client has the key after the body was written.
        let claims = read(claim(&site).await.unwrap()).await;
        assert_eq!(claims["claims"][0]["attempt"], json!(1));
        assert_eq!(queue.states().in_flight, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_of_a_queue_in_memory_ends_with_its_lease_or_its_site() {
        let queue = Queue::new();
        queue.add("a".to_owned());
        let site = site(&queue);
        let claims = read(claim(&site).await.unwrap()).await;
        let named = json!({ "key": "a", "token": claims["claims"][0]["token"] });
        let renew = json!({ "claims": [named], "lease": 10 });
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(9)).await;
            let renewed = ask(&site, "renew", WorkAction::Renew, &renew).await.unwrap();
            assert_eq!(renewed.status(), StatusCode::OK);
        }
        assert_eq!((queue.states().in_flight, queue.failures("a")), (1, 0));
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert_eq!((queue.states().in_flight, queue.failures("a")), (0, 1));
        let renewed = ask(&site, "renew", WorkAction::Renew, &renew).await.unwrap();
        assert_eq!(renewed.status(), StatusCode::CONFLICT);

        queue.add("b".to_owned());
        drop(read(claim(&site).await.unwrap()).await);
        assert_eq!(queue.states().in_flight, 1);
        drop(site);
        tokio::task::yield_now().await;
        assert_eq!((queue.states().in_flight, queue.failures("b")), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_without_a_key_takes_a_while_and_ends_with_its_site() {
        let site = site(&Queue::new());
        let start = tokio::time::Instant::now();
        let body = json!({ "worker": "w", "wait": 0 });
        let none = ask(&site, "claim", WorkAction::Claim, &body).await.unwrap();
        assert_eq!(read(none).await, json!({ "claims": [] }));
        assert_eq!(start.elapsed(), LEAST_WAIT);
        let mut waiting = claim(&site);
        assert!((&mut waiting).now_or_never().is_none());
        site.shutdown();
        let refused = waiting.await.unwrap_err().into_response();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
