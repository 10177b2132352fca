//! Fetches the pages whose keys are due.

use std::sync::Arc;
use std::time::Duration;

use http::{StatusCode, Uri};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use requeue::workers::{Action, Context, Error, Workers};
use requeue_store::{Key, Queue};
use tokio::signal::unix::{SignalKind, signal};

use crate::cache::Cache;

/// The flag of an add: the page has changed, so the cached one is of no use.
pub(crate) const CHANGED: u32 = 1;

/// The longest duration of a run.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Warmer {
    redis: String,
    origin: Uri,
    http: Client<HttpConnector, String>,
    ttl: Duration,
}

impl Warmer {
    pub(crate) fn new(redis: String, origin: Uri, ttl: Duration) -> Self {
        let http = Client::builder(TokioExecutor::new()).build_http();
        Self { redis, origin, http, ttl }
    }

    /// A page is fetched again this long before it expires.
    fn margin(&self) -> Duration {
        self.ttl / 5
    }

    /// Works until SIGTERM or Ctrl-C, and then waits for the runs in flight.
    pub(crate) async fn run(self, queue: Queue, jobs: u16) -> std::io::Result<()> {
        let mut terminated = signal(SignalKind::terminate())?;
        let warmer = Arc::new(self);
        let handler = move |key: Key, context: Context| {
            let warmer = Arc::clone(&warmer);
            async move { warmer.warm(key, context).await }
        };
        let stop = async move {
            tokio::select! {
                _ = terminated.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        };
        Workers::new(queue, handler)
            .concurrency(jobs.into())
            .timeout(TIMEOUT)
            .run_until(stop)
            .await;
        Ok(())
    }

    /// Puts one page into the cache. The result adds the key again, before the page expires.
    async fn warm(&self, path: Key, context: Context) -> Result<Action, Error> {
        let path = path.as_str().ok_or_else(|| Error::terminal("the path is not UTF-8"))?;
        let mut cache = Cache::connect(&self.redis).await?;
        // Adds that came during the last run have caused this one. The page that it wrote serves them, too.
        let left = cache.time_left(path).await?;
        if left > self.margin() && context.flags() & CHANGED == 0 {
            return Ok(Action::requeue_after(left - self.margin()));
        }
        let Some(page) = self.fetch(path).await? else {
            tracing::warn!(path, "the origin has no such page, so it leaves the cache");
            return Ok(Action::succeed());
        };
        if !cache.write(path, &page, self.ttl, context.fencing_token()).await? {
            return Err(
                "a later run has written the page: the lease of this run had expired".into()
            );
        }
        tracing::info!(path, attempt = context.attempt(), adds = context.adds(), "fetched");
        Ok(Action::requeue_after(self.ttl - self.margin()))
    }

    /// Computes the value of a key. Returns `None` if there is no such page.
    async fn fetch(&self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        let url = format!("{}{}", self.origin, &path[1..]);
        let url = url.parse().map_err(|error| Error::terminal(format!("{url}: {error}")))?;
        let response = self.http.get(url).await?;
        match response.status() {
            StatusCode::NOT_FOUND | StatusCode::GONE => return Ok(None),
            StatusCode::OK => {}
            status => return Err(format!("the origin answers with {status}").into()),
        }
        Ok(Some(response.into_body().collect().await?.to_bytes().into()))
    }
}
