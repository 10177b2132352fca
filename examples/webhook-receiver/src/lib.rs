//! A receiver of webhooks.
//!
//! A webhook only reports *that* a customer has changed. [`app`] adds the customer's name to a queue. [`work`] reads the
//! current state of the customer, and copies it. Here, the other system is a directory of files, one for each customer.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use requeue::workers::{Action, Context, Error, Workers};
use requeue_http::Site;
use requeue_store::{Add, Key, OpenError, Queue, Store};
use sha2::Sha256;
use tokio::fs;

/// A customer is synchronised when no webhook has come for this time.
pub const QUIET: Duration = Duration::from_secs(2);
/// A customer is synchronised at most this long after its first webhook, even if webhooks never pause.
pub const AT_MOST: Duration = Duration::from_secs(20);
/// The header with the signature: the HMAC-SHA256 of the customer, a line feed and the body, in base64.
pub const SIGNATURE: &str = "x-signature";

/// Opens the queue. All webhooks that were answered with 202 are in it, also after a crash.
///
/// # Errors
///
/// The store cannot be reached, or refuses the queue.
pub async fn open(store: &Store) -> Result<Queue, OpenError> {
    store.queue("customers").max_failures(10).open().await
}

/// Returns the routes: the webhooks, and the dashboard of the queue at `/queue`.
///
/// With a secret, each webhook must have a [signature](SIGNATURE).
pub fn app(queue: Queue, site: &Site, secret: Option<String>) -> Router {
    let no_customer =
        || async { (StatusCode::BAD_REQUEST, "no customer: POST /webhooks/CUSTOMER\n") };
    Router::new()
        .route("/webhooks/{customer}", post(receive))
        .route("/webhooks/", post(no_customer))
        .with_state(Arc::new((queue, secret)))
        .nest_service("/queue", site.router())
}

async fn receive(
    State(state): State<Arc<(Queue, Option<String>)>>,
    Path(customer): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, String) {
    let (queue, secret) = &*state;
    if secret.as_ref().is_some_and(|secret| !is_signed(secret, &headers, &customer, &body)) {
        let signed = "the HMAC-SHA256 of the customer, a line feed and the body";
        let why = format!("no valid signature: send {signed} as {SIGNATURE}\n");
        return (StatusCode::UNAUTHORIZED, why);
    }
    // The name becomes the name of a file. Therefore it must not contain `/` or `.`.
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if customer.len() > 64 || !customer.chars().all(is_allowed) {
        let why = format!("invalid customer {customer:?}: use up to 64 letters, digits, - and _\n");
        return (StatusCode::BAD_REQUEST, why);
    }
    match queue.add_with(&*customer, Add::debounce(QUIET).at_most(AT_MOST)).await {
        Ok(_) => (StatusCode::ACCEPTED, format!("{customer} will be synchronised\n")),
        // The sender repeats a webhook that was not accepted.
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}; send it again\n")),
    }
}

fn is_signed(secret: &str, headers: &HeaderMap, customer: &str, body: &[u8]) -> bool {
    let signature = headers.get(SIGNATURE).and_then(|value| BASE64_STANDARD.decode(value).ok());
    let (Some(signature), Ok(mut mac)) =
        (signature, Hmac::<Sha256>::new_from_slice(secret.as_bytes()))
    else {
        return false;
    };
    // Without the customer, the signature of one webhook would be valid for all customers.
    mac.update(customer.as_bytes());
    mac.update(b"\n");
    mac.update(body);
    // The comparison takes constant time.
    mac.verify_slice(&signature).is_ok()
}

/// The directories of the customers, with a file for each customer.
#[derive(Clone, Debug)]
pub struct Customers {
    /// The current state: in a real program, the API of another system.
    pub source: PathBuf,
    /// The copies: in a real program, a table of your database.
    pub copies: PathBuf,
}

impl Customers {
    /// Copies the current state of a customer, or deletes the copy of a deleted customer. Repeating it is harmless.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written. The workers retry with backoff.
    pub async fn synchronise(&self, customer: &str) -> io::Result<()> {
        let copy = self.copies.join(customer);
        let is_missing = |error: &io::Error| error.kind() == ErrorKind::NotFound;
        match fs::read(self.source.join(customer)).await {
            Ok(state) => {
                // A crash leaves the old copy or the new one, and no part of one.
                let new = self.copies.join(format!("{customer}.new"));
                fs::write(&new, state).await?;
                fs::rename(new, copy).await
            }
            Err(error) if is_missing(&error) => match fs::remove_file(copy).await {
                Err(error) if !is_missing(&error) => Err(error),
                _ => Ok(()),
            },
            Err(error) => Err(error),
        }
    }
}

/// Synchronises customers until `stopped`, and then completes the runs in flight. Waiting customers stay in the queue.
pub async fn work(queue: Queue, customers: Customers, stopped: impl Future<Output = ()>) {
    let customers = Arc::new(customers);
    let handler = move |key: Key, context: Context| {
        let customers = Arc::clone(&customers);
        async move {
            let customer = key.as_str().ok_or_else(|| Error::terminal("the key is not text"))?;
            customers.synchronise(customer).await?;
            tracing::info!(customer, webhooks = context.adds(), "synchronised");
            Ok(Action::succeed())
        }
    };
    Workers::new(queue, handler)
        .concurrency(4)
        .timeout(Duration::from_secs(30))
        .drain_timeout(Duration::from_secs(15))
        .grace(Duration::from_secs(5))
        .run_until(stopped)
        .await;
}
