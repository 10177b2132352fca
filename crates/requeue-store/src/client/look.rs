//! Reads the values that metrics show in addition to the counts and the activity of a queue.

use std::time::Duration;

use requeue::metrics::{AtGroupLimit, Sample};

use crate::engine::{Engine, Place, SORTED_KEYS};
use crate::types::error::{Answer, Kind};
use crate::types::inspect::GroupInfo;

/// The maximum number of groups that one read returns.
const GROUPS: usize = 1_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    is_paused: bool,
    at_group_limit: Option<AtGroupLimit>,
}

impl Look {
    /// Adds these values to a sample. They were read `ago` before now.
    pub(crate) fn add_to(self, sample: &mut Sample, ago: Duration) {
        sample.paused = Some(self.is_paused);
        sample.at_group_limit = self.at_group_limit;
        if let Some(at_limit) = &mut sample.at_group_limit
            && at_limit.keys > 0
        {
            at_limit.oldest += ago;
        }
    }
}

/// Reads these values for a queue that has about `keys` keys.
pub(crate) async fn read_look(
    engine: &dyn Engine,
    place: &Place,
    has_groups: bool,
    keys: u64,
) -> Answer<Look> {
    let is_paused = engine.is_paused(place).await?;
    // To list the groups, an engine reads all keys. In most engines, a count of the keys is as expensive, but not in an
    // engine that scans.
    let is_cheap = !engine.scans() || keys <= SORTED_KEYS;
    let at_group_limit = match has_groups && is_cheap {
        true => match engine.list_groups(place, None, GROUPS).await {
            Ok(groups) => keys_at_limit(place.group_limit, &groups),
            // In PostgreSQL, a role that an older version created has no right to read the groups.
            Err(fault) if fault.kind == Kind::Refused => None,
            Err(fault) => return Err(fault),
        },
        false => None,
    };
    Ok(Look { is_paused, at_group_limit })
}

/// Returns the number of ready keys in groups that have reached their limit. Returns `None` if neither the queue nor a
/// group has a limit.
fn keys_at_limit(default: Option<u32>, groups: &[GroupInfo]) -> Option<AtGroupLimit> {
    let mut found = default.map(|_| AtGroupLimit::default());
    for GroupInfo { counts, limit, is_paused, .. } in groups {
        let Some(limit) = *limit else { continue };
        let at_limit = found.get_or_insert_with(AtGroupLimit::default);
        if counts.ready > 0 && counts.in_flight >= limit.into() && !is_paused {
            at_limit.keys += usize::try_from(counts.ready).unwrap_or(usize::MAX);
            at_limit.oldest = at_limit.oldest.max(counts.oldest_ready);
        }
    }
    found
}
