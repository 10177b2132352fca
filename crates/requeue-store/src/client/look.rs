//! Reads the values that metrics show in addition to the counts and the activity of a queue.

use std::time::Duration;

use requeue::metrics::{AtGroupLimit, Sample};

use crate::engine::{Engine, Place, SORTED_KEYS};
use crate::types::error::{Answer, Kind};
use crate::types::inspect::{GroupInfo, Hold};

/// The maximum number of groups that one read returns.
const GROUPS: usize = 1_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    is_paused: bool,
    at_group_limit: Option<AtGroupLimit>,
    /// The time for which the oldest ready key has been ready. Keys of groups that are paused or at their limit are left
    /// out. Zero without such keys. `None` if not all groups were read.
    oldest_free: Option<Duration>,
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
        if let Some(oldest) = self.oldest_free {
            let oldest = if oldest.is_zero() { oldest } else { oldest + ago };
            // The counts may be newer: the key was delivered since.
            sample.times.oldest_ready = sample.times.oldest_ready.min(oldest);
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
    let groups = match has_groups && is_cheap {
        true => match engine.list_groups(place, None, GROUPS).await {
            Ok(groups) => Some(groups),
            // In PostgreSQL, a role that an older version created has no right to read the groups.
            Err(fault) if fault.kind == Kind::Refused => None,
            Err(fault) => return Err(fault),
        },
        false => None,
    };
    Ok(Look {
        is_paused,
        at_group_limit: groups.as_ref().and_then(|read| keys_at_limit(place.group_limit, read)),
        oldest_free: groups.filter(|read| read.len() < GROUPS).map(|read| oldest_free(&read)),
    })
}

/// Returns the number of ready keys in groups that have reached their limit. Returns `None` if neither the queue nor a
/// group has a limit.
fn keys_at_limit(default: Option<u32>, groups: &[GroupInfo]) -> Option<AtGroupLimit> {
    let has_limit = default.is_some() || groups.iter().any(|group| group.limit.is_some());
    let mut found = has_limit.then(AtGroupLimit::default)?;
    for group in groups.iter().filter(|group| group.hold() == Some(Hold::Limit)) {
        found.keys += usize::try_from(group.counts.ready).unwrap_or(usize::MAX);
        found.oldest = found.oldest.max(group.counts.oldest_ready);
    }
    Some(found)
}

/// Returns the longest time for which a key of a group that is neither paused nor at its limit has been ready.
///
/// A group that its rate holds back is included. Otherwise, the result would fall to zero between two starts of the
/// group.
fn oldest_free(groups: &[GroupInfo]) -> Duration {
    let free = groups.iter().filter(|group| matches!(group.hold(), None | Some(Hold::Rate)));
    free.map(|group| group.counts.oldest_ready).max().unwrap_or_default()
}
