//! The shards into which the objects of a kind are divided, so that replicas can share them.
//!
//! The 64-bit FNV-1a hash of an object's uid or namespace determines the object's shard, as in KEP-5866
//! (`ShardedListAndWatch`). A shard is a range of hashes. The API server can therefore select the objects of a shard.

use kube::Resource;
use kube::core::ObjectMeta;
use kube::runtime::watcher::Event;

use crate::error::ConfigError;

/// The field of an object from whose hash the shard is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum ShardBy {
    /// The uid of the object. It distributes objects most evenly.
    ///
    /// The API server sends only the objects of the controller's own kind that are in the shard. An owned object has
    /// another uid than its owner. Each replica therefore receives all owned objects, and drops those whose owners are
    /// in other shards.
    #[default]
    Uid,
    /// The namespace of the object. An object and the objects that it owns are in one namespace, and therefore in one
    /// shard. With a fixed shard, the API server sends only the objects of the shard, for both kinds. All objects of a
    /// kind without namespaces would be in one shard, so use the uid for such a kind. The last characters of a text
    /// change mostly the low bits of its hash. Namespaces such as `team-1` and `team-2` are therefore usually in one
    /// shard.
    Namespace,
}

impl ShardBy {
    /// Returns the name of the field in a selector of the API server.
    pub(crate) const fn field(self) -> &'static str {
        match self {
            Self::Uid => "object.metadata.uid",
            Self::Namespace => "object.metadata.namespace",
        }
    }
}

/// A shard: the objects of a kind whose hashes are in one of several ranges of equal length.
///
/// A controller with a shard reconciles only the objects of the shard. An object is in exactly one shard, which never
/// changes.
///
/// ```
/// use requeue_leases::range::{Shard, ShardBy};
///
/// // The second of four replicas has this shard.
/// let shard = Shard::new(1, 4)?.by(ShardBy::Namespace);
/// let meta = kube::core::ObjectMeta { namespace: Some("web".to_owned()), ..Default::default() };
/// println!("this replica reconciles the namespace: {}", shard.contains(&meta));
/// # Ok::<(), requeue_leases::ConfigError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Shard {
    index: u32,
    count: u32,
    by: ShardBy,
    /// True if the objects of the controller's kind have no namespaces.
    is_cluster_scoped: bool,
}

impl Shard {
    /// Creates the shard with the number `index`, from 0, of `count` shards. The shard of an object depends on its uid.
    ///
    /// All replicas must use the same `count`. Otherwise, some objects are in the shards of two replicas, and others in
    /// no shard.
    ///
    /// # Errors
    ///
    /// Returns an error if `index` is not less than `count`.
    pub fn new(index: u32, count: u32) -> Result<Self, ConfigError> {
        if index >= count {
            return Err(ConfigError(match count {
                0 => "0 shards: use at least 1".to_owned(),
                _ => format!(
                    "shard {index} of {count}: the shards are numbered from 0 to {}",
                    count - 1
                ),
            }));
        }
        Ok(Self { index, count, by: ShardBy::default(), is_cluster_scoped: false })
    }

    /// Sets the field from whose hash the shard of an object is computed.
    #[must_use]
    pub const fn by(mut self, by: ShardBy) -> Self {
        self.by = by;
        self
    }

    /// Returns true if the object with this metadata is in the shard.
    #[must_use]
    pub fn contains(&self, meta: &ObjectMeta) -> bool {
        let field = match self.by {
            ShardBy::Uid => &meta.uid,
            ShardBy::Namespace => &meta.namespace,
        };
        self.contains_value(field.as_deref().unwrap_or_default())
    }

    /// Returns true if an object whose field has this value is in the shard.
    fn contains_value(&self, value: &str) -> bool {
        index_of(value, self.count) == self.index
    }
}

// These methods are hidden, because only requeue-kube uses them. With these methods, requeue-kube decides which objects
// a controller reconciles.
#[doc(hidden)]
impl Shard {
    /// Returns the value of the parameter `shardSelector` of a list or watch request, which kube-rs does not know yet.
    #[must_use]
    pub fn selector(&self) -> String {
        selector_of(self.by, self.count, self.index, self.index + 1)
    }

    /// Returns true if the API server can select the objects that are owned by objects in this shard.
    #[must_use]
    pub fn selects_owned(&self) -> bool {
        self.by == ShardBy::Namespace && !self.is_cluster_scoped
    }

    /// Returns the same shard for a kind without namespaces. The objects of such a kind may own objects in any
    /// namespace.
    #[must_use]
    pub const fn cluster_scoped(mut self) -> Self {
        self.is_cluster_scoped = true;
        self
    }

    /// Returns true if the owner with this uid may be in this shard. `owned` is the metadata of an object that names
    /// this owner.
    #[must_use]
    pub fn contains_owner(&self, uid: &str, owned: &ObjectMeta) -> bool {
        match self.by {
            ShardBy::Uid => self.contains_value(uid),
            ShardBy::Namespace if self.is_cluster_scoped => self.contains_value(""),
            ShardBy::Namespace => self.contains(owned),
        }
    }

    /// Returns the event if its object is in the shard, or if it has no object.
    pub fn own<O: Resource>(&self, event: Event<O>) -> Option<Event<O>> {
        match &event {
            Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) => {
                self.contains(object.meta()).then_some(event)
            }
            // These events mark the beginning and the end of a list, and have no object.
            Event::Init | Event::InitDone => Some(event),
        }
    }
}

/// Returns the number of the shard of an object whose field has this value, if there are `count` shards. The range of
/// all hashes is divided into `count` equal parts. The number is that of the part that contains the hash of the value.
/// All code computes shards by this function.
#[doc(hidden)]
#[must_use]
pub fn index_of(value: &str, count: u32) -> u32 {
    let hash = fnv1a(value.as_bytes());
    // The index is less than `count`, so the cast loses no bits.
    ((u128::from(hash) * u128::from(count)) >> 64) as u32
}

/// Returns a part of the parameter `shardSelector` of a list or watch request. It selects the shards from `start` to
/// `end`, of `count` shards. `end` is exclusive. Several parts are joined by ` || `.
#[doc(hidden)]
#[must_use]
pub fn selector_of(by: ShardBy, count: u32, start: u32, end: u32) -> String {
    // Returns the lowest hash for which `index_of` returns this shard.
    let bound = |index: u32| (u128::from(index) << 64).div_ceil(u128::from(count));
    format!("shardRange({}, '{:#018x}', '{:#018x}')", by.field(), bound(start), bound(end))
}

/// Returns the 64-bit FNV-1a hash, as [RFC 9923](https://www.rfc-editor.org/rfc/rfc9923) defines it.
#[doc(hidden)]
#[must_use]
pub fn fnv1a(bytes: &[u8]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(uid: &str, namespace: &str) -> ObjectMeta {
        let (uid, namespace) = (Some(uid.to_owned()), Some(namespace.to_owned()));
        ObjectMeta { uid, namespace, ..ObjectMeta::default() }
    }

    /// The test vectors are those of the authors of FNV-1a.
    #[test]
    fn the_hash_is_fnv_1a() {
        for (text, hash) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            assert_eq!(fnv1a(text.as_bytes()), hash, "{text}");
        }
    }

    #[test]
    fn each_object_is_in_exactly_one_of_the_shards() {
        for count in [1, 2, 3, 7, 64, 1000] {
            let mut sizes = vec![0; count as usize];
            for number in 0_u32..2000 {
                // These uids differ in all characters, as the uids of an API server do.
                let uid =
                    u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
                let meta = meta(&format!("{uid:032x}"), &format!("ns-{}", number % 10));
                for by in [ShardBy::Uid, ShardBy::Namespace] {
                    let shards = (0..count).map(|index| Shard::new(index, count).unwrap().by(by));
                    let found: Vec<_> =
                        shards.enumerate().filter(|(_, shard)| shard.contains(&meta)).collect();
                    assert_eq!(found.len(), 1, "{number} of {count}");
                    sizes[found[0].0] += usize::from(by == ShardBy::Uid);
                }
            }
            assert!(count > 64 || sizes.iter().all(|size| *size > 0), "{count}: {sizes:?}");
        }
    }

    #[test]
    fn the_ranges_of_the_selectors_touch_and_cover_all_hashes() {
        let of_three: Vec<_> = (0..3).map(|n| Shard::new(n, 3).unwrap().selector()).collect();
        assert_eq!(
            of_three,
            [
                "shardRange(object.metadata.uid, '0x0000000000000000', '0x5555555555555556')",
                "shardRange(object.metadata.uid, '0x5555555555555556', '0xaaaaaaaaaaaaaaab')",
                "shardRange(object.metadata.uid, '0xaaaaaaaaaaaaaaab', '0x10000000000000000')",
            ]
        );
    }

    /// The API server compares an object's hash with the bounds of the selector, but this process computes the index.
    #[test]
    fn the_bounds_of_the_selectors_are_those_of_the_index() {
        for count in [1, 2, 3, 7, 64, 1000, 1024] {
            let texts = (0_u32..500).map(|n| n.wrapping_mul(0x9e37_79b9).to_string());
            for text in texts {
                let hash = u128::from(fnv1a(text.as_bytes()));
                let index = index_of(&text, count);
                let selector = selector_of(ShardBy::Uid, count, index, index + 1);
                let bounds: Vec<_> = selector.split('\'').skip(1).step_by(2).collect();
                let bound = |n: usize| u128::from_str_radix(&bounds[n][2..], 16).unwrap();
                assert!((bound(0)..bound(1)).contains(&hash), "{text} in {selector}");
            }
        }
    }

    #[test]
    fn a_number_that_is_too_high_is_refused() {
        let error = |index, count| Shard::new(index, count).unwrap_err().to_string();
        assert_eq!(error(4, 4), "shard 4 of 4: the shards are numbered from 0 to 3");
        assert_eq!(error(0, 0), "0 shards: use at least 1");
    }
}
