//! The controller of client-go's tutorials: `process_next_item`, `handle_err` and five retries.
//!
//! `requeue::workers::Workers` does all of this; here it is by hand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use requeue::{Item, Queue};

const MAX_RETRIES: u32 = 5;

struct Controller {
    queue: Queue<String>,
    /// How many replicas each deployment is to have.
    store: Mutex<BTreeMap<String, u32>>,
}

impl Controller {
    async fn run_worker(self: Arc<Self>) {
        while self.process_next_item().await {}
    }

    async fn process_next_item(&self) -> bool {
        // Until the item ends, nobody else gets this key. Another key, yes: run many workers.
        let Some(item) = self.queue.get().await else { return false };
        let result = self.sync(&item).await;
        self.handle_err(item, result);
        true
    }

    /// Brings one key into line. It is told the key alone, and looks up what is wanted *now*.
    async fn sync(&self, item: &Item<'_, String>) -> Result<String, &'static str> {
        let wanted = self.store.lock().expect("nobody panics").get(item.key()).copied();
        match wanted {
            None => Ok("is gone: nothing to do".into()),
            Some(0) => Err("no image of that name"),
            Some(_) if item.attempt() == 1 => Err("conflict"),
            Some(replicas) => Ok(format!("has {replicas} replicas, by attempt {}", item.attempt())),
        }
    }

    fn handle_err(&self, item: Item<'_, String>, result: Result<String, &'static str>) {
        let key = item.key().clone();
        match result {
            Ok(done) => {
                println!("{key} {done}");
                item.succeed();
            }
            // client-go asks for `NumRequeues`, which is there, too, and 0 with some limiters.
            Err(_) if item.attempt() <= MAX_RETRIES => {
                item.retry();
            }
            Err(error) => {
                println!("{key} is given up after {} attempts: {error}", item.attempt());
                // `Forget` and `Done`: the next add of the key starts afresh.
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

    // What an informer's handlers do on add, update and delete.
    for key in ["default/web", "default/db", "default/web", "default/broken", "default/deleted"] {
        controller.queue.add_ref(key);
    }

    let workers: Vec<_> = (0..2).map(|_| tokio::spawn(controller.clone().run_worker())).collect();
    // An informer never ends; this input does.
    controller.queue.close();
    for worker in workers {
        worker.await.expect("a worker does not panic");
    }
}
