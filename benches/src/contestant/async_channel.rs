//! A channel with many senders and receivers, which does not deduplicate keys.

use std::hint::black_box;

use async_channel::{Receiver, Sender, unbounded};

use super::several::{self, Shared, Tasks};
use super::single::{self, Subject};
use super::{Contestant, contended};
use crate::keys::Key;
use crate::protocol::{Answer, Request, Scenario};
use crate::versions;

/// The `async-channel` crate, unbounded.
#[derive(Debug)]
pub(super) struct Channel;

impl Contestant for Channel {
    const NAME: &'static str = "async-channel";
    const SCENARIOS: &'static [Scenario] = &[
        Scenario::Cycle,
        Scenario::FillDrain,
        Scenario::Threads,
        Scenario::Tasks,
        Scenario::HandOver,
        Scenario::Memory,
    ];

    fn version() -> String {
        versions::of("async-channel")
    }

    fn round<K: Key>(request: &Request) -> Option<Answer> {
        let make = Ends::<K>::default;
        Some(match request.scenario {
            Scenario::Cycle => single::cycle(make(), request),
            Scenario::FillDrain => single::fill_drain(make(), request),
            Scenario::Threads => return contended::threads(&Ends::<u64>::default(), request),
            Scenario::Tasks => return contended::tasks(Ends::<u64>::default, request),
            Scenario::HandOver => several::hand_over(&make(), request),
            Scenario::Memory => single::memory(make, request),
            _ => return None,
        })
    }
}

struct Ends<K> {
    sender: Sender<K>,
    receiver: Receiver<K>,
}

impl<K> Default for Ends<K> {
    fn default() -> Self {
        let (sender, receiver) = unbounded();
        Self { sender, receiver }
    }
}

impl<K> Clone for Ends<K> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), receiver: self.receiver.clone() }
    }
}

impl<K: Key> Subject<K> for Ends<K> {
    fn add(&mut self, key: &K) {
        Shared::add(self, key);
    }

    fn take(&mut self) {
        drop(black_box(self.receiver.recv_blocking()));
    }
}

impl<K: Key> Shared<K> for Ends<K> {
    fn add(&self, key: &K) {
        // The send fails only if the channel is closed, which happens after the last add.
        drop(self.sender.try_send(key.clone()));
    }

    fn work(&self, mut each: impl FnMut(&K)) {
        while let Ok(key) = self.receiver.recv_blocking() {
            each(&key);
        }
    }

    fn close(&self) {
        self.sender.close();
    }
}

impl<K: Key> Tasks<K> for Ends<K> {
    async fn work_as_task(&self, mut each: impl FnMut(&K) + Send) {
        while let Ok(key) = self.receiver.recv().await {
            each(&key);
        }
    }
}
