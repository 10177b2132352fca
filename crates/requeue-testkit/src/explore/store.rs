//! A simulated store in memory, in which the processes of a world keep queues.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use requeue_store::Store;
use requeue_store::simulated::{self, Database, Way};
use tokio::time::sleep;

use super::link::{Link, draw_delay};
use super::plan::Mishap;
use super::state::{Place, State};

/// The time after which a client notices that its connection is broken.
const NOTICED: Duration = Duration::from_millis(500);

/// The connection of one process to the simulated store.
struct Connection {
    link: Arc<Link>,
    /// True if the process must crash before it receives the next answer.
    crashes: AtomicBool,
}

/// Returns a client of the world's store for the process with this link.
///
/// All processes of a world share one database. It is SQLite in memory, and its clock
/// is the clock of the world.
pub(super) fn connect(state: &State, link: Arc<Link>) -> Store {
    let database = state.database.get_or_init(|| {
        Database::open().expect("SQLite opens a database in memory while there is memory")
    });
    Store::simulated(database, Arc::new(Connection { link, crashes: AtomicBool::new(false) }))
}

#[async_trait]
impl simulated::Link for Connection {
    async fn begin(&self) -> Way {
        let link = &self.link;
        link.stop_if_dead().await;
        if !link.writer.is_process() {
            return Way::Through;
        }
        let mut reached = link.state.reach(Place::Operation, link.writer);
        sleep(draw_delay(&mut reached.random)).await;
        let way = match reached.mishap {
            Some(Mishap::Lost) => {
                sleep(NOTICED).await;
                Way::Lost
            }
            Some(Mishap::Unanswered) => Way::Unanswered,
            Some(Mishap::Late(time)) => {
                sleep(time).await;
                Way::Through
            }
            Some(Mishap::CrashBefore) => {
                link.kill();
                Way::Through
            }
            Some(Mishap::CrashAfter) => {
                self.crashes.store(true, Ordering::Relaxed);
                Way::Through
            }
            _ => Way::Through,
        };
        // An operation of a crashed process must not begin.
        link.stop_if_dead().await;
        way
    }

    async fn end(&self) {
        if self.crashes.swap(false, Ordering::Relaxed) {
            self.link.kill();
        }
        self.link.stop_if_dead().await;
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.link.writer).finish()
    }
}
