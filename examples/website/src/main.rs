//! `website-controller [ADDRESS]` is the controller, with its page, metrics and probes at that
//! address, 0.0.0.0:8080 unless said. `website-controller crd` prints the definition of its resource.

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
    // In the namespace of its own pod.
    let election = leader::Config::new(&config.default_namespace, CONTROLLER);
    website_controller::run(config, election, listener).await
}
