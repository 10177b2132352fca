//! `/api/v1/events`: sends the samples so far, then a summary each second, and then the end.

use std::convert::Infallible;
use std::sync::Arc;

use axum::response::sse::{Event, Sse};
use futures_util::stream::{iter, unfold};
use futures_util::{Stream, StreamExt};
use serde_json::json;
use tokio::sync::watch;

use crate::samples::columns;
use crate::state::SiteState;

/// Returns the stream of a client, or `None` if there are too many streams.
pub(crate) fn event_stream(
    site: Arc<SiteState>,
) -> Option<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let permit = site.begin_stream()?;
    // The subscription precedes the read, so that no sample is missed. A sample may be sent twice.
    let ticks = site.ticks.subscribe();
    let samples = columns(&site.samples.all());
    let history = json!({ "started": site.started, "samples": samples }).to_string();
    let first = [("history", history), ("tick", site.summary_json())];
    let first = first.map(|(name, data)| Event::default().event(name).data(data));
    // The permit is part of the state, so that it is returned when the stream ends.
    let rest = unfold((site, permit, Some(ticks)), async |(site, permit, ticks)| {
        let (event, ticks) = site.next_event(ticks?).await?;
        Some((event, (site, permit, ticks)))
    });
    Some(Sse::new(iter(first).chain(rest).map(Ok)))
}

impl SiteState {
    /// Returns the next tick. After the site was shut down, returns the last event, and then `None`.
    async fn next_event(
        &self,
        mut ticks: watch::Receiver<Arc<str>>,
    ) -> Option<(Event, Option<watch::Receiver<Arc<str>>>)> {
        // `wait_for` also checks the present value, so a new receiver detects an earlier end.
        let mut ended = self.ended.subscribe();
        tokio::select! {
            // The end is checked first, because a client that reads slowly must not miss it because of ticks.
            biased;
            Ok(_) = ended.wait_for(|&ended| ended) => {
                Some((Event::default().event("ended").data(self.summary_json()), None))
            }
            Ok(()) = ticks.changed() => {
                let data = Arc::clone(&*ticks.borrow_and_update());
                Some((Event::default().event("tick").data(data), Some(ticks)))
            }
            else => None,
        }
    }
}
