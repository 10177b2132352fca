//! Walks through the keys of a queue in a store.

use std::borrow::Cow;
use std::time::Duration;

use requeue_store::{Entry, Part, Queue, ReadError, State};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::answers::{await_answer, stored_state};
use crate::api::State as RowState;
use crate::keys::escape_key;
use crate::params::Problem;
use crate::source::{LOOKS, Selection};

/// The time limit of a page of keys, for which some engines scan all keys.
pub(super) const PATIENCE_FOR_PAGES: Duration = Duration::from_secs(60);

/// The limits of a walk: the number of keys, and the time.
#[derive(Clone, Copy)]
pub(super) struct Reach {
    pub(super) keys: usize,
    pub(super) time: Duration,
    /// True if each key must be visited exactly once, even if the store must then read all keys for each page.
    pub(super) is_exact: bool,
}

/// The limits of a list. A page of keys in progress is completed, so a response takes up to about two seconds.
pub(super) const LIST: Reach = Reach { keys: LOOKS, time: Duration::from_secs(1), is_exact: false };
pub(super) const ALL: Reach = Reach { keys: usize::MAX, time: Duration::MAX, is_exact: true };

/// The number of keys that are filtered before the task yields, and the size of the first page.
const SLICE: usize = 256;
const GROWTH: usize = 16;
/// The largest page that is usually quick to read and small in memory.
const MANY: usize = SLICE * GROWTH;
/// The time above which a page may be larger than [`MANY`], because the engine may scan all keys for each page.
const SLOW: Duration = Duration::from_millis(200);

/// Returns the size of the next page, after a page of this size. `before` is the duration of the page before that.
fn next_size(size: usize, took: Duration, before: Duration, left: usize) -> usize {
    // If a larger page takes about as long as a smaller one, the engine scans all keys for each page.
    let scans = took > SLOW && took < before * 4;
    let most = if scans { left } else { MANY.min(left) };
    (size * GROWTH).min(most)
}

/// Calls `visit` for the selected keys within `reach`, until `visit` returns false. Returns the number of keys that
/// were read, and the position after them if there may be more. If the store scans its keys, a walk ends at the end of
/// a part, and may visit more keys than `visit` wants.
pub(super) async fn visit_keys(
    queue: &Queue,
    selection: &Selection,
    mut after: Option<Vec<u8>>,
    reach: Reach,
    mut visit: impl FnMut(&Entry) -> bool + Send,
) -> Result<(usize, Option<Vec<u8>>), Problem> {
    let state = selection.state.map(stored_state).transpose()?;
    let (mut looked_at, mut size, mut before) = (0, SLICE, Duration::ZERO);
    let started = Instant::now();
    loop {
        let begin = Instant::now();
        let part = read_part(queue, state, after.as_deref(), size, reach);
        let Part { entries, next, in_order, .. } = await_answer(PATIENCE_FOR_PAGES, part).await?;
        let took = begin.elapsed();
        let mut is_done = false;
        for slice in entries.chunks(SLICE) {
            for entry in slice {
                looked_at += 1;
                let text = || escape_key(&entry.key);
                let error = || entry.error.as_deref().map(Cow::Borrowed);
                let state = RowState::stored(entry.state);
                let is_taken = selection.selects(state, entry.failures, text, error);
                let goes_on = !is_taken || visit(entry);
                is_done |= !goes_on || looked_at >= reach.keys;
                if is_done && in_order {
                    return Ok((looked_at, Some(Part::position_after(&entry.key))));
                }
            }
            yield_now().await;
        }
        after = next;
        if is_done || after.is_none() {
            return Ok((looked_at, after));
        }
        // The client receives the keys found so far, and can continue with the next page.
        if started.elapsed() >= reach.time {
            return Ok((looked_at, after));
        }
        size = next_size(size, took, before, (reach.keys - looked_at).min(LOOKS));
        before = took;
    }
}

/// Reads up to `size` keys after a position.
async fn read_part(
    queue: &Queue,
    state: Option<State>,
    from: Option<&[u8]>,
    size: usize,
    reach: Reach,
) -> Result<Part, ReadError> {
    if !reach.is_exact {
        return queue.walk_entries(state, from, size).await;
    }
    let after = from.and_then(Part::key_before);
    Ok(Part::of_page(queue.snapshot(state, after.as_ref(), size).await?, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_never_has_more_than_it_looks_at() {
        let sizes = |took: Duration| {
            let (mut size, mut left, mut sizes) = (SLICE, LOOKS, Vec::new());
            while left > 0 {
                sizes.push(size);
                left -= size;
                size = next_size(size, took, took, left);
            }
            sizes
        };
        let quick = sizes(Duration::ZERO);
        assert_eq!((quick[..3].to_vec(), quick.iter().sum()), (vec![256, 4096, 4096], LOOKS));
        // An engine that scans all keys for each page scans them only four times.
        assert_eq!(sizes(2 * SLOW), [256, 4096, 65_536, 30_112]);
        // The time of a page grows with its size, so larger pages would only delay the response.
        assert_eq!(next_size(MANY, 2 * SLOW, SLOW / 4, LOOKS), MANY);
    }
}
