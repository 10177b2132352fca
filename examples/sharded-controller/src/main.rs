//! `sharded-controller` runs one replica, with the cluster that `kubectl` uses or in a pod.

use std::process::ExitCode;

use clap::Parser;
use kube::Client;
use requeue_kube::membership::ShardGroup;
use sharded_controller::{CONTROLLER, controller, run};

/// Counts the entries of ConfigMaps. All replicas work, each on the objects of its shards.
#[derive(Parser)]
struct Args {
    /// Number of shards: a power of two, about ten times the number of replicas, and the same in all of them
    #[arg(long, value_name = "N", default_value_t = 64)]
    shards: u32,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt::init();
    match run_replica(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The kubelet restarts the process, which joins the group again.
            eprintln!("{CONTROLLER}: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run_replica(args: Args) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let config = kube::Config::infer().await?;
    let shards = ShardGroup::new(CONTROLLER, &config.default_namespace).count(args.shards);
    // Renewals of the Lease must not wait behind the requests of the work.
    let own_connections = shards.client(config.clone())?;
    let client = Client::try_from(config)?;
    let controller = controller(client.clone(), shards.with_client(own_connections));
    run(controller.shutdown_on_signal(), client).await?;
    Ok(())
}
