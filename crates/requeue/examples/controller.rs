//! The controller of client-go's tutorials: `process_next_item`, `handle_err` and five retries.
//!
//! It is written by hand. `requeue::workers::Workers` does all of this.

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
        // No other worker gets this key until its completion. Other keys can be in flight in
        // parallel, so several workers run.
        let Some(item) = self.queue.get().await else { return false };
        let result = self.sync(&item).await;
        self.handle_err(item, result);
        true
    }

    /// Reconciles one key. It receives only the key, and looks up the desired state *now*.
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
            // client-go calls `NumRequeues`. This crate has it, too, but it returns 0 with some
            // limiters.
            Err(_) if item.attempt() <= MAX_RETRIES => {
                item.retry();
            }
            Err(error) => {
                println!("{key} is given up after {} attempts: {error}", item.attempt());
                // This is `Forget` and `Done`: the next add of the key starts with attempt 1.
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

    // The adds that an informer's handlers make on add, update and delete.
    for key in ["default/web", "default/db", "default/web", "default/broken", "default/deleted"] {
        controller.queue.add_ref(key);
    }

    let workers: Vec<_> = (0..2).map(|_| tokio::spawn(controller.clone().run_worker())).collect();
    // An informer's input never ends, but this input does.
    controller.queue.close();
    for worker in workers {
        worker.await.expect("a worker does not panic");
    }
}
