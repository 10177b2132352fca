//! The token that cancels attempts. With the feature `tokio`, tasks can also wait for it.

#[cfg(feature = "tokio")]
pub(super) use tokio_util::sync::CancellationToken as Token;

#[cfg(not(feature = "tokio"))]
pub(super) use self::flag::Token;

#[cfg(not(feature = "tokio"))]
mod flag {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Clone, Debug, Default)]
    pub(in super::super) struct Token(Arc<AtomicBool>);

    impl Token {
        pub(in super::super) fn new() -> Self {
            Self::default()
        }

        pub(in super::super) fn cancel(&self) {
            self.0.store(true, Ordering::Release);
        }

        pub(in super::super) fn is_cancelled(&self) -> bool {
            self.0.load(Ordering::Acquire)
        }
    }
}
