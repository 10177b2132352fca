//! The signals Ctrl-C and SIGTERM, which shut a controller down.

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select};
use tokio::sync::oneshot;

/// Returns two futures. The first one completes at the first signal, and the second one at the second signal. The first
/// one makes progress only while the second one is polled.
pub(super) fn shutdown_signals() -> (BoxFuture<'static, ()>, BoxFuture<'static, ()>) {
    // The second future handles both signals. Two separate handlers would both receive the first signal.
    let (first, shutdown) = oneshot::channel();
    let second = async {
        wait_for_signal().await;
        tracing::info!("shutting down; a second signal drops the runs in flight");
        // The receiver is gone if the shutdown has begun for another reason. The error is ignored.
        _ = first.send(());
        wait_for_signal().await;
    };
    (shutdown.map(|_| ()).boxed(), second.boxed())
}

/// Waits for the next Ctrl-C or SIGTERM.
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
