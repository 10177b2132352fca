//! `website-controller [ADDRESS]` runs the controller.
//!
//! Its dashboard, metrics and probes are served at that address, which is 0.0.0.0:8080 by default. `website-controller
//! crd` prints the definition of its resource.

use kube::CustomResourceExt;
use requeue_kube::leader;
use tokio::net::TcpListener;
use website_controller::{CONTROLLER, Website};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("crd") {
        print!("{}", serde_saphyr::to_string(&Website::crd())?);
        return Ok(());
    }
    tracing_subscriber::fmt::init();
    let listener = TcpListener::bind(argument.as_deref().unwrap_or("0.0.0.0:8080")).await?;
    let config = kube::Config::infer().await?;
    // The Lease is in the namespace of the controller's pod.
    let election = leader::Config::new(&config.default_namespace, CONTROLLER);
    website_controller::run(config, election, listener).await
}
