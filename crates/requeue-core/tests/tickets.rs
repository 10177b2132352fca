//! Tickets of deliveries whose records were moved by compaction.

use requeue_core::{Add, Config, Delivery, Finish, GroupId, Order, Queue, ReaddPolicy, Time};

const NOW: Time = Time::ZERO;

/// The 4,000 records fill several chunks of the slab. Nearly all of them are then removed.
#[test]
fn a_ticket_completes_its_delivery_wherever_the_record_is() {
    let configs = [
        Config::default(),
        Config { readd_policy: ReaddPolicy::KeepBoth, track: true, ..Config::default() },
        Config { order: Order::Priority { oldest_every: 4 }, ..Config::default() },
        Config { fair: true, group_limit: Some(5_000), ..Config::default() },
    ];
    for config in configs {
        let mut queue = Queue::new(config);
        for key in 0..4_000_u64 {
            let _ = queue.add(key, key, Add::now(), GroupId::default(), NOW);
        }
        let outs: Vec<Delivery<u64>> = core::iter::from_fn(|| queue.get(NOW)).collect();
        assert_eq!(outs.len(), 4_000);
        let (stay, go): (Vec<_>, Vec<_>) = outs.into_iter().partition(|out| out.key > 3_900);
        for out in go {
            assert!(queue.finish(&out.ticket, Finish::Succeed, NOW).is_some(), "{}", out.key);
        }
        for (n, out) in stay.into_iter().enumerate() {
            assert!(queue.detach(&out.ticket) && !queue.is_dirty(&out.ticket), "{}", out.key);
            let how = [Finish::Succeed, Finish::Done][n % 2];
            let ended = queue.finish(&out.ticket, how, NOW).expect("it is in flight");
            assert_eq!(ended.key, Some(out.key));
            assert!(queue.finish(&out.ticket, how, NOW).is_none());
        }
        assert_eq!(queue.records(), 0);
    }
}
