//! `webhook-receiver [ADDRESS [DIRECTORY]]` receives webhooks until SIGTERM or Ctrl-C.
//!
//! The address is 127.0.0.1:8080 by default. The directory, by default `webhook-data`, contains the queue and the
//! customers. With the environment variable `WEBHOOK_SECRET`, each webhook must have a signature.

use std::env::{VarError, var};
use std::iter::successors;
use std::path::PathBuf;
use std::process::ExitCode;

use requeue_http::Site;
use requeue_store::Store;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use webhook_receiver::{Customers, app, open, work};

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt::init();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let causes = successors(error.source(), |cause| cause.source());
            let causes: String = causes.map(|cause| format!(": {cause}")).collect();
            eprintln!("webhook-receiver: {error}{causes}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the secret. An unusable one is an error, because the program accepts all webhooks without a secret.
fn secret() -> Result<Option<String>, &'static str> {
    match var("WEBHOOK_SECRET") {
        Ok(secret) if secret.is_empty() => {
            Err("WEBHOOK_SECRET is empty: set it to the secret of the sender, or unset it")
        }
        Ok(secret) => Ok(Some(secret)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => {
            Err("WEBHOOK_SECRET is not UTF-8: set it to the secret of the sender, or unset it")
        }
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let secret = secret()?;
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let directory = PathBuf::from(arguments.next().unwrap_or_else(|| "webhook-data".to_owned()));
    let customers =
        Customers { source: directory.join("source"), copies: directory.join("copies") };
    for path in [&customers.source, &customers.copies] {
        let created = std::fs::create_dir_all(path);
        created.map_err(|error| format!("{}: {error}", path.display()))?;
    }

    let store = Store::connect(&format!("sqlite:{}", directory.join("queue.db").display())).await?;
    store.migrate().await?;
    let queue = open(&store).await?;
    let site = Site::of_store(queue.clone()).title("customers").build();
    let app = app(queue.clone(), &site, secret);
    let listener = TcpListener::bind(&address).await;
    let listener = listener.map_err(|error| format!("{address}: {error}"))?;
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tracing::info!("the dashboard is at http://{}/queue", listener.local_addr()?);

    let (ended, workers_ended) = oneshot::channel::<()>();
    let workers = async move {
        let stopped = async {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        };
        work(queue, customers, stopped).await;
        // Until here, webhooks are accepted. Open dashboards would keep their connections.
        site.shutdown();
        drop(ended);
    };
    let server = axum::serve(listener, app)
        .with_graceful_shutdown(async { drop(workers_ended.await) })
        .into_future();
    let (served, ()) = tokio::join!(server, workers);
    store.close().await;
    Ok(served?)
}
