//! The ranges of hashes that consecutive shards form, and the selector for these ranges.

use std::collections::BTreeSet;

use crate::range::{ShardBy, selector_of};

/// The maximum number of ranges in a selector. A range needs about 90 characters of the URL, and
/// many proxies reject URLs of more than 8 KiB.
const MAX_RANGES: usize = 64;

/// Returns the ranges of the shards in `held`. The end of a range is exclusive. Adjacent shards
/// form one range.
///
/// If there are more than [`MAX_RANGES`] ranges, the function closes the shortest gaps between
/// them. The API server then also sends the objects in these gaps, and the client drops them.
pub(super) fn ranges_of(held: &BTreeSet<u32>) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &shard in held {
        match ranges.last_mut() {
            Some((_, end)) if *end == shard => *end += 1,
            _ => ranges.push((shard, shard + 1)),
        }
    }
    let mut gaps: Vec<_> = (1..ranges.len()).map(|n| (ranges[n].0 - ranges[n - 1].1, n)).collect();
    gaps.sort_unstable();
    let mut joined: Vec<_> =
        gaps.iter().take(ranges.len().saturating_sub(MAX_RANGES)).map(|&(_, n)| n).collect();
    joined.sort_unstable_by(|a, b| b.cmp(a));
    for n in joined {
        ranges[n - 1].1 = ranges[n].1;
        ranges.remove(n);
    }
    ranges
}

/// Returns the selector for the union of these ranges, of `count` shards in total. `ranges` must
/// not be empty.
pub(super) fn selector_of_ranges(by: ShardBy, count: u32, ranges: &[(u32, u32)]) -> String {
    let ranges = ranges.iter().map(|&(start, end)| selector_of(by, count, start, end));
    ranges.collect::<Vec<_>>().join(" || ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_range() {
        let of = |held: &[u32]| {
            selector_of_ranges(ShardBy::Uid, 4, &ranges_of(&held.iter().copied().collect()))
        };
        assert_eq!(
            of(&[0, 1, 2, 3]),
            "shardRange(object.metadata.uid, '0x0000000000000000', '0x10000000000000000')"
        );
        assert_eq!(
            of(&[0, 2, 3]),
            "shardRange(object.metadata.uid, '0x0000000000000000', '0x4000000000000000') || \
             shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')"
        );
    }

    #[test]
    fn a_selector_has_at_most_64_ranges_and_covers_all_shards() {
        // Exactly one gap between held shards is three shards long. All other gaps are one shard
        // long.
        let held: BTreeSet<u32> = (0..1024).step_by(2).filter(|&shard| shard != 500).collect();
        let selector = selector_of_ranges(ShardBy::Namespace, 1024, &ranges_of(&held));
        assert_eq!(selector.matches("shardRange").count(), MAX_RANGES);
        assert!(selector.len() < 8 * 1024);
        assert!(selector.starts_with("shardRange(object.metadata.namespace, '0x0000000000000000'"));
        // The longest gap, shards 499 to 501, stays excluded.
        assert!(selector.contains("'0x7cc0000000000000') || "), "{selector}");
    }
}
