//! The stream of a watch, which simulates delays and faults.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use super::link::{BoxError, Link};
use super::plan::Mishap;
use super::state::Place;

/// The stream of one watch of a process.
struct Watch {
    link: Arc<Link>,
    group: String,
    plural: String,
    body: UnsyncBoxBody<Bytes, BoxError>,
    /// The part of the stream that the server has sent, and that was not passed to the
    /// client yet.
    arrived: BytesMut,
    /// A line that is passed to the client a second time.
    again: Option<Bytes>,
    /// The time before which no event is passed to the client. A delayed event therefore
    /// also delays the later events, whose order must not change.
    not_before: Instant,
    has_ended: bool,
}

/// Returns the body of a watch, with the faults of the plan.
pub(super) fn disturb_watch(
    link: Arc<Link>,
    group: String,
    plural: String,
    body: UnsyncBoxBody<Bytes, BoxError>,
) -> UnsyncBoxBody<Bytes, BoxError> {
    let watch = Watch {
        link,
        group,
        plural,
        body,
        arrived: BytesMut::new(),
        again: None,
        not_before: Instant::now(),
        has_ended: false,
    };
    let lines = stream::unfold(watch, async |mut watch| {
        let line = watch.next_line().await?;
        Some((Ok::<_, BoxError>(Frame::data(line)), watch))
    });
    // The stream is boxed and pinned, because its type is not `Unpin`.
    BodyExt::boxed_unsync(StreamBody::new(Box::pin(lines)))
}

impl Watch {
    /// Returns the next line for the client, or `None` if the stream has ended.
    async fn next_line(&mut self) -> Option<Bytes> {
        if let Some(again) = self.again.take() {
            return Some(again);
        }
        let line = self.read_line().await?;
        let is_bookmark = line.windows(10).any(|part| part == b"\"BOOKMARK\"");
        if !is_bookmark && self.plural != "leases" {
            let mut reached = self.link.state.reach(Place::Event, self.link.writer);
            let longest = if reached.random.u8(0..12) == 0 { 3_000 } else { 20 };
            let mut delay = Duration::from_millis(reached.random.u64(1..=longest));
            match reached.mishap {
                Some(Mishap::Cut) => return None,
                Some(Mishap::Expired) => {
                    self.has_ended = true;
                    return Some(expired());
                }
                Some(Mishap::Repeated) => self.again = Some(line.clone()),
                Some(Mishap::Delayed(time)) => delay += time,
                _ => {}
            }
            self.not_before = self.not_before.max(Instant::now() + delay);
            sleep_until(self.not_before).await;
        } else {
            sleep(Duration::from_millis(1)).await;
        }
        self.link.stop_if_dead().await;
        if let Some(version) = version_of(&line) {
            self.link.note_seen_kind(&self.group, &self.plural, version);
        }
        Some(line)
    }

    /// Reads one line from the server, including its newline.
    async fn read_line(&mut self) -> Option<Bytes> {
        while !self.has_ended {
            if let Some(end) = self.arrived.iter().position(|byte| *byte == b'\n') {
                return Some(self.arrived.split_to(end + 1).freeze());
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.arrived.extend_from_slice(&data);
                    }
                }
                _ => self.has_ended = true,
            }
        }
        None
    }
}

/// Returns the first resource version in a line. In a text that contains JSON, the
/// quotes are escaped, so that text is skipped.
fn version_of(line: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(line).ok()?;
    let (_, rest) = line.split_once("\"resourceVersion\":\"")?;
    rest.split('"').next()?.parse().ok()
}

fn expired() -> Bytes {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version (by a fault of the test)", "reason": "Expired", "code": 410,
    });
    Bytes::from(json!({ "type": "ERROR", "object": status }).to_string() + "\n")
}
