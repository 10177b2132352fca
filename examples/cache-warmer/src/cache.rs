//! The pages in Redis.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, Client, RedisResult, Script};

/// Writes a page, unless a run with a greater fencing token has written it in the last day.
///
/// The token outlives the page. Otherwise, a worker that was frozen in its run could write an old page after the expiry
/// of the new one.
const WRITE: &str = "
    if tonumber(redis.call('GET', KEYS[2]) or 0) > tonumber(ARGV[1]) then
        return false
    end
    redis.call('SET', KEYS[2], ARGV[1], 'EX', 86400)
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    return true
";

/// A connection to the cache.
pub(crate) struct Cache(MultiplexedConnection);

impl Cache {
    pub(crate) async fn connect(url: &str) -> RedisResult<Self> {
        Ok(Self(Client::open(url)?.get_multiplexed_async_connection().await?))
    }

    pub(crate) async fn read(&mut self, path: &str) -> RedisResult<Option<Vec<u8>>> {
        self.0.get(page(path)).await
    }

    /// Returns the time until the page expires, which is 0 for a missing page.
    pub(crate) async fn time_left(&mut self, path: &str) -> RedisResult<Duration> {
        let milliseconds: i64 = self.0.pttl(page(path)).await?;
        Ok(Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0)))
    }

    /// Writes a page. Returns false if a later run has written it.
    pub(crate) async fn write(
        &mut self,
        path: &str,
        body: &[u8],
        ttl: Duration,
        token: u64,
    ) -> RedisResult<bool> {
        let script = Script::new(WRITE);
        let mut call = script.key(page(path));
        call.key(format!("{}:token", page(path))).arg(token).arg(body).arg(ttl.as_millis() as u64);
        call.invoke_async(&mut self.0).await
    }
}

/// Returns the name of a page in Redis. On a cluster, the braces keep the page and its token on one node.
fn page(path: &str) -> String {
    format!("cache:{{{path}}}")
}

#[cfg(test)]
mod tests {
    use requeue_servers::Redis;

    use super::*;

    #[tokio::test]
    async fn a_late_write_is_refused_even_after_the_page_has_expired() {
        let Some(server) = Redis::start() else { return };
        let mut cache = Cache::connect(&server.url("")).await.expect("it is up");
        let ttl = Duration::from_secs(60);
        assert!(cache.write("/a", b"new", ttl, 8).await.expect("an answer"));
        assert!(!cache.write("/a", b"old", ttl, 7).await.expect("an answer"));
        assert_eq!(cache.read("/a").await.expect("an answer").as_deref(), Some(&b"new"[..]));
        assert!(cache.time_left("/a").await.expect("an answer") <= ttl);

        server.cli(&["DEL", &page("/a")]);
        assert_eq!(cache.time_left("/a").await.expect("an answer"), Duration::ZERO);
        assert!(!cache.write("/a", b"old", ttl, 7).await.expect("an answer"));
        assert!(cache.write("/a", b"newer", ttl, 8).await.expect("the same run may write again"));
    }
}
