//! Reads the keys of a queue in a store, one page after another.

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

/// The time limit of the read of one page of keys. Some engines scan all keys of the queue for a
/// page.
pub(super) const PATIENCE_FOR_PAGES: Duration = Duration::from_secs(60);

/// The limits of a walk: the number of keys that it reads, and its duration.
#[derive(Clone, Copy)]
pub(super) struct Reach {
    pub(super) keys: usize,
    pub(super) time: Duration,
    /// If true, the walk visits each key exactly once. For this, some stores must read all keys
    /// for each page.
    pub(super) is_exact: bool,
}

/// The limits of a walk for a list. The walk completes the page that it is reading, so a
/// response can take about two seconds.
pub(super) const LIST: Reach = Reach { keys: LOOKS, time: Duration::from_secs(1), is_exact: false };
pub(super) const ALL: Reach = Reach { keys: usize::MAX, time: Duration::MAX, is_exact: true };

/// The number of keys that are filtered before the task yields. It is also the size of the first
/// page.
const SLICE: usize = 256;
const GROWTH: usize = 16;
/// The maximum size of a page, unless the engine scans all keys for each page. Such a page is
/// usually quick to read, and needs little memory.
const MANY: usize = SLICE * GROWTH;
/// If a page takes longer than this time, the engine may scan all keys for each page. A page may
/// then be larger than [`MANY`].
const SLOW: Duration = Duration::from_millis(200);

/// Returns the size of the next page. The last page had `size` keys and took `took`. The page
/// before it took `before`. `left` is the number of keys that the walk may still read.
fn next_size(size: usize, took: Duration, before: Duration, left: usize) -> usize {
    // If the larger page took less than four times as long as the smaller one, the engine scans
    // all keys for each page.
    let scans = took > SLOW && took < before * 4;
    let most = if scans { left } else { MANY.min(left) };
    (size * GROWTH).min(most)
}

/// Calls `visit` for the selected keys within `reach`, until `visit` returns false. Returns the
/// number of keys that were read. Also returns the position after them, if there may be more
/// keys. If the store scans its keys, the walk stops only at the end of a part, so `visit` is
/// called for the rest of this part.
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
        // The time is over. The client receives the keys that were found, and can request the
        // next page.
        if started.elapsed() >= reach.time {
            return Ok((looked_at, after));
        }
        size = next_size(size, took, before, (reach.keys - looked_at).min(LOOKS));
        before = took;
    }
}

/// Reads up to `size` keys that follow a position.
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
        // If an engine scans all keys for each page, four pages are enough to read [`LOOKS`]
        // keys.
        assert_eq!(sizes(2 * SLOW), [256, 4096, 65_536, 30_112]);
        // The time of a page increases with its size, so the engine does not scan all keys.
        // Larger pages would only delay the response.
        assert_eq!(next_size(MANY, 2 * SLOW, SLOW / 4, LOOKS), MANY);
    }
}
