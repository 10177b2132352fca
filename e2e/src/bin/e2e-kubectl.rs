//! The parts of kubectl that the example of a controller in a shell script calls, for machines
//! without kubectl.

use std::error::Error;
use std::io;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::Value;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let client = Client::try_default().await?;
    match args[..] {
        ["get", "configmap", name, "--namespace", namespace, "-o", "jsonpath={.data}"] => {
            let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
            if let Some(data) = maps.get(name).await?.data {
                print!("{}", serde_json::to_string(&data)?);
            }
        }
        ["apply", "--server-side", "--force-conflicts", "--namespace", namespace, "-f", "-"] => {
            let map: Value = serde_json::from_reader(io::stdin())?;
            let name = map["metadata"]["name"].as_str().ok_or("an object without a name")?;
            let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
            let params = PatchParams::apply("kubectl").force();
            maps.patch(name, &params, &Patch::Apply(&map)).await?;
            println!("configmap/{name} serverside-applied");
        }
        _ => return Err(format!("this is no kubectl, and does not know {args:?}").into()),
    }
    Ok(())
}
