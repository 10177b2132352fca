//! Values that the API names.

/// A value with a name in the API.
pub(crate) trait Named: Copy + PartialEq + 'static {
    /// The values that a request can name, with their names.
    const NAMES: &'static [(&'static str, Self)];

    /// Returns the value with this name.
    fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// Returns the name of the value; empty if a request cannot name it.
    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }

    /// Returns all names.
    fn names() -> impl Iterator<Item = &'static str> {
        Self::NAMES.iter().map(|(name, _)| *name)
    }
}
