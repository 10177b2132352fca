//! The signals that shut a process down.

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select};
use tokio::sync::oneshot;

/// Returns a future that completes at the first signal, and a future that completes at the second signal. The first
/// future completes only if the second future is polled.
pub(super) fn shutdown_signals() -> (BoxFuture<'static, ()>, BoxFuture<'static, ()>) {
    // One future waits for both signals, because two handlers would both receive the first signal.
    let (first, shutdown) = oneshot::channel();
    let second = async {
        wait_for_signal().await;
        tracing::info!("shutting down; a second signal drops the runs in flight");
        // The send fails if the receiver was dropped because the shutdown has already begun.
        _ = first.send(());
        wait_for_signal().await;
    };
    (shutdown.map(|_| ()).boxed(), second.boxed())
}

/// Completes at the next Ctrl-C or SIGTERM.
async fn wait_for_signal() {
    let interrupt = tokio::signal::ctrl_c().map(|received| {
        received
            .unwrap_or_else(|error| panic!("the handler for Ctrl-C cannot be installed: {error}"));
    });
    #[cfg(unix)]
    let terminate = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => _ = terminate.recv().await,
            Err(error) => panic!("the handler for SIGTERM cannot be installed: {error}"),
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<()>();
    select(interrupt.boxed(), terminate.boxed()).await;
}
