//! Finds the versions of the peers with which this program is built.

/// Returns the version of a crate in `Cargo.lock`.
#[must_use]
pub fn of(name: &str) -> String {
    let entry = format!("name = \"{name}\"\nversion = \"");
    let lock = include_str!("../../Cargo.lock");
    let version = lock.split_once(&entry).and_then(|(_, rest)| rest.split('"').next());
    version.unwrap_or("of unknown version").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_that_are_locked() {
        assert_eq!(of("requeue-core"), env!("CARGO_PKG_VERSION"));
        assert_eq!(of("no-such-crate"), "of unknown version");
    }
}
