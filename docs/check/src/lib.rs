//! The pages of the documentation, whose Rust code blocks are compiled and run as doctests.
//!
//! A test in `tests/pages.rs` compares the list with the pages that contain such blocks.

macro_rules! pages {
    ($($name:ident = $page:literal;)*) => {$(
        #[doc = include_str!(concat!("../../../", $page))]
        #[cfg(doctest)]
        pub struct $name;
    )*};
}

pages! {
    Readme = "README.md";
    ClientGo = "docs/guides/client-go.md";
    FirstController = "docs/kube/first-controller.md";
    Features = "docs/kube/features.md";
    Shards = "docs/kube/shards.md";
    GettingStarted = "docs/getting-started.md";
    Stores = "docs/guides/stores.md";
    Testing = "docs/guides/testing.md";
    Shutdown = "docs/guides/shutdown.md";
    Debouncing = "docs/guides/debouncing.md";
    Cancelling = "docs/guides/cancelling.md";
    Priorities = "docs/guides/priorities.md";
    Migrating = "docs/guides/migrating.md";
    Metrics = "docs/operations/metrics.md";
    Troubleshooting = "docs/operations/troubleshooting.md";
    Configuration = "docs/reference/configuration.md";
}
