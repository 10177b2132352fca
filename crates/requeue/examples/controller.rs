//! The controller of the tutorials of client-go: `process_next_item`, `handle_err` and five
//! retries.
//!
//! This example implements the loop itself. `requeue::workers::Workers` does the same work.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use requeue::{Item, Queue};

const MAX_RETRIES: u32 = 5;

struct Controller {
    queue: Queue<String>,
    /// The desired number of replicas of each deployment.
    store: Mutex<BTreeMap<String, u32>>,
}

impl Controller {
    async fn run_worker(self: Arc<Self>) {
        while self.process_next_item().await {}
    }

    async fn process_next_item(&self) -> bool {
        // No other worker gets this key until its delivery is completed. Other keys can be in
        // flight at the same time, so several workers can run.
        let Some(item) = self.queue.get().await else { return false };
        let result = self.sync(&item).await;
        self.handle_err(item, result);
        true
    }

    /// Reconciles one key. The key is the only input: the method looks up the present desired
    /// state.
    async fn sync(&self, item: &Item<'_, String>) -> Result<String, &'static str> {
        let wanted = self.store.lock().expect("no panic under the lock").get(item.key()).copied();
        match wanted {
            None => Ok("was deleted".into()),
            Some(0) => Err("no such image"),
            Some(_) if item.attempt() == 1 => Err("conflict"),
            Some(replicas) => Ok(format!("has {replicas} replicas, in attempt {}", item.attempt())),
        }
    }

    fn handle_err(&self, item: Item<'_, String>, result: Result<String, &'static str>) {
        let key = item.key().clone();
        match result {
            Ok(done) => {
                println!("{key} {done}");
                item.succeed();
            }
            // client-go calls `NumRequeues`. This crate also has that method, but it returns 0 with
            // some limiters.
            Err(_) if item.attempt() <= MAX_RETRIES => {
                item.retry();
            }
            Err(error) => {
                println!("{key} is given up after {} attempts: {error}", item.attempt());
                // This call corresponds to `Forget` and `Done`. The next add of the key starts
                // again with attempt 1.
                item.succeed();
            }
        }
    }
}

#[tokio::main]
async fn main() {
    let wanted = [("default/web", 3), ("default/db", 1), ("default/broken", 0)];
    let store = Mutex::new(wanted.map(|(key, replicas)| (key.to_owned(), replicas)).into());
    let controller = Arc::new(Controller { queue: Queue::new(), store });

    // In a real controller, the handlers of an informer make these adds, when objects are added,
    // updated or deleted.
    for key in ["default/web", "default/db", "default/web", "default/broken", "default/deleted"] {
        controller.queue.add_ref(key);
    }

    let workers: Vec<_> = (0..2).map(|_| tokio::spawn(controller.clone().run_worker())).collect();
    // The input of an informer never ends, but the input of this example does.
    controller.queue.close();
    for worker in workers {
        worker.await.expect("a worker does not panic");
    }
}
