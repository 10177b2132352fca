//! Answers `/api/v1/events`: sends the last samples, then a summary each second, and an event when
//! the site is shut down.

use std::convert::Infallible;
use std::sync::Arc;

use axum::response::sse::{Event, Sse};
use futures_util::stream::{iter, unfold};
use futures_util::{Stream, StreamExt};
use serde_json::json;
use tokio::sync::watch;

use crate::samples::columns;
use crate::state::SiteState;

/// Returns the stream of events for a client, or `None` if too many streams are open.
pub(crate) fn event_stream(
    site: Arc<SiteState>,
) -> Option<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let permit = site.begin_stream()?;
    // The subscription begins before the samples are read, so that the client receives each sample
    // at least once.
    let ticks = site.ticks.subscribe();
    let samples = columns(&site.samples.all());
    let history = json!({ "started": site.started, "samples": samples }).to_string();
    let first = [("history", history), ("tick", site.summary_json())];
    let first = first.map(|(name, data)| Event::default().event(name).data(data));
    // The permit is part of the state of the stream, so it is returned when the stream is dropped.
    let rest = unfold((site, permit, Some(ticks)), async |(site, permit, ticks)| {
        let (event, ticks) = site.next_event(ticks?).await?;
        Some((event, (site, permit, ticks)))
    });
    Some(Sse::new(iter(first).chain(rest).map(Ok)))
}

impl SiteState {
    /// Waits for the next summary, and returns it as an event. After the site was shut down,
    /// returns the event `ended`, and then `None`.
    async fn next_event(
        &self,
        mut ticks: watch::Receiver<Arc<str>>,
    ) -> Option<(Event, Option<watch::Receiver<Arc<str>>>)> {
        // `wait_for` also checks the present value, so it notices a shutdown before the
        // subscription.
        let mut ended = self.ended.subscribe();
        tokio::select! {
            // The shutdown is checked first. Otherwise, a client that reads slowly could receive
            // only ticks, and never the event `ended`.
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
