//! Keeps transactions of other clients open while the workers run.

use std::time::Duration;

use tokio::sync::watch;
use tokio_postgres::{Client, Error, NoTls};

use crate::event::{Event, Kind, now};
use crate::groups::{group_name, group_of, text_of};
use crate::report::{Fault, Faults};
use crate::worker::key;

/// The events and faults of these transactions.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    pub(crate) events: Vec<Event>,
    pub(crate) faults: Faults,
}

/// Opens transactions one after the other, until `over` is set and each kind of transaction has
/// occurred.
pub(crate) async fn elsewhere(
    url: String,
    mut over: watch::Receiver<bool>,
    mut rng: fastrand::Rng,
) -> Elsewhere {
    let mut all = Elsewhere::default();
    while !*over.borrow() || all.faults.len() < 3 {
        // The server may be dead now, and may die at any time.
        if let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await {
            let driven = tokio::spawn(connection);
            while (!*over.borrow() || all.faults.len() < 3)
                && all.keep_open(&client, &mut over, &mut rng).await.is_ok()
            {}
            drop(client);
            let _ = driven.await;
        } else {
            rest(Duration::from_millis(50), &mut over).await;
        }
    }
    all
}

/// Waits for the time `long`, or until `over` is set.
async fn rest(long: Duration, over: &mut watch::Receiver<bool>) {
    let _ = tokio::time::timeout(long, over.wait_for(|&over| over)).await;
}

impl Elsewhere {
    async fn keep_open(
        &mut self,
        client: &Client,
        over: &mut watch::Receiver<bool>,
        rng: &mut fastrand::Rng,
    ) -> Result<(), Error> {
        let which = rng.u8(..4);
        let fault = match which {
            0 => {
                // As long as this snapshot is open, rows of runs that complete in the meantime
                // cannot be vacuumed.
                let look =
                    "begin isolation level repeatable read; select count(*) from requeue.keys";
                client.batch_execute(look).await?;
                rest(Duration::from_millis(rng.u64(100..3000)), over).await;
                client.batch_execute("commit").await?;
                Fault::Snapshot
            }
            _ => {
                let key = key(rng);
                let (text, group) = (text_of(key), group_name(group_of(key)));
                let add =
                    format!("begin; select requeue.add('chaos', '{text}', \"group\" => '{group}')");
                client.batch_execute(&add).await?;
                // In most cases, the transaction is shorter than a lease. Sometimes, it takes
                // seconds.
                let longest = if rng.u8(..6) == 0 { 4000 } else { 700 };
                rest(Duration::from_millis(rng.u64(..longest)), over).await;
                // The add becomes visible after this time, when the transaction commits.
                let begun = now();
                let end = if which == 1 { "rollback" } else { "commit" };
                client.batch_execute(end).await?;
                if which == 1 {
                    Fault::RolledBack
                } else {
                    let kind = Kind::Added { begun, at: now(), is_ready: false };
                    self.events.push(Event { process: 0, key, kind });
                    Fault::Committed
                }
            }
        };
        *self.faults.entry(fault).or_default() += 1;
        rest(Duration::from_millis(rng.u64(..200)), over).await;
        Ok(())
    }
}
