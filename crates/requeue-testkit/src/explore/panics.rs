//! Records the panics of a run, so that they are not printed.

use std::any::Any;
use std::cell::RefCell;
use std::panic;
use std::sync::Once;

thread_local! {
    /// The panics of the run on this thread, or `None` if no run is in progress.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Records the panics of this thread, until the value is dropped.
pub(super) struct Recording(());

impl Recording {
    pub(super) fn start() -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                // While a thread ends, its thread-local values may already be
                // destroyed.
                let recorded = PANICS.try_with(|panics| {
                    let mut panics = panics.borrow_mut();
                    let panics = panics.as_mut()?;
                    let place = info.location().map(ToString::to_string).unwrap_or_default();
                    let message = message_of(info.payload());
                    panics.push(format!("{place}: {message}"));
                    Some(())
                });
                if !matches!(recorded, Ok(Some(()))) {
                    before(info);
                }
            }));
        });
        PANICS.with(|panics| *panics.borrow_mut() = Some(Vec::new()));
        Self(())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // The value may be dropped while its thread ends and the thread-local values
        // are already destroyed.
        _ = PANICS.try_with(|panics| *panics.borrow_mut() = None);
    }
}

/// Returns the message of the first panic in the run on this thread.
pub(super) fn first_panic() -> Option<String> {
    PANICS.with(|panics| panics.borrow().as_ref()?.first().cloned())
}

/// Returns the message of a panic, if it is text.
pub(super) fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a value that is no text")
}
