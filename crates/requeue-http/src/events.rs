//! `/api/v1/events`: the samples so far, then a summary each second, then the end.

use std::convert::Infallible;
use std::sync::Arc;

use axum::response::sse::{Event, Sse};
use futures_util::stream::{iter, unfold};
use futures_util::{Stream, StreamExt};
use serde_json::json;
use tokio::sync::watch;

use crate::samples::columns;
use crate::state::SiteState;

/// Returns the stream of a client; `None` if there are too many streams.
pub(crate) fn event_stream(
    site: Arc<SiteState>,
) -> Option<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let permit = site.begin_stream()?;
    // The subscription comes before the read: a sample may be sent twice, but none is missed.
    let ticks = site.ticks.subscribe();
    let samples = columns(&site.samples.all());
    let history = json!({ "started": site.started, "samples": samples }).to_string();
    let first = [("history", history), ("tick", site.summary_json())];
    let first = first.map(|(name, data)| Event::default().event(name).data(data));
    // The permit is a part of the state, so the end of the stream returns it.
    let rest = unfold((site, permit, Some(ticks)), async |(site, permit, ticks)| {
        let (event, ticks) = site.next_event(ticks?).await?;
        Some((event, (site, permit, ticks)))
    });
    Some(Sse::new(iter(first).chain(rest).map(Ok)))
}

impl SiteState {
    /// Returns the next tick. After the site has ended, returns the last event, and then nothing.
    async fn next_event(
        &self,
        mut ticks: watch::Receiver<Arc<str>>,
    ) -> Option<(Event, Option<watch::Receiver<Arc<str>>>)> {
        // A new receiver has not seen the end yet, and `wait_for` checks the present value first.
        let mut ended = self.ended.subscribe();
        tokio::select! {
            // The end comes first: a client that reads slowly must not miss it behind ticks.
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
