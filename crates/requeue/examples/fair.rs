//! The order of deliveries: priorities without starvation, fair shares, and a limit per group.

use requeue::{Add, BuildError, GroupId, Order, Queue};

/// A namespace and a name.
type Key = (&'static str, u32);

fn main() -> Result<(), BuildError> {
    // A user waits for the `urgent` keys. The other keys come from a resync of all objects.
    let queue = Queue::builder().order(Order::Priority { oldest_every: 4 }).build()?;
    for n in 0..3 {
        queue.add_with(("resync", n), Add::now().priority(-100));
    }
    for n in 0..8 {
        queue.add_with(("urgent", n), Add::now());
    }
    show("by priority, but every fourth delivery is the oldest key", &queue);

    let by_namespace = |&(namespace, _): &Key| GroupId::of(namespace);
    let fair = Queue::builder().group_by(by_namespace).fair().build()?;
    fill(&fair);
    show("fair: the namespaces take turns", &fair);

    let weighted = |&(namespace, _): &Key| {
        GroupId::of(namespace).weight(if namespace == "noisy" { 3 } else { 1 })
    };
    let fair = Queue::builder().group_by(weighted).fair().build()?;
    fill(&fair);
    show("fair, with three keys of noisy in each turn", &fair);

    let limited = Queue::builder().group_by(by_namespace).group_limit(2).build()?;
    fill(&limited);
    let items = limited.get_many(100).now();
    let taken: Vec<Key> = items.iter().map(|item| **item).collect();
    println!(
        "a limit of two keys in flight per namespace:\n  {taken:?}; {} keys are throttled",
        limited.len()
    );
    for item in items {
        item.succeed();
    }
    println!(
        "  the four runs complete: {} more keys are delivered",
        limited.get_many(100).now().len()
    );
    Ok(())
}

fn fill(queue: &Queue<Key>) {
    queue.add_all((0..6).map(|n| ("noisy", n)));
    queue.add_all((0..2).map(|n| ("quiet", n)));
}

fn show(what: &str, queue: &Queue<Key>) {
    println!("{what}:");
    while let Some(item) = queue.try_get() {
        print!("  {}/{}", item.0, item.1);
        item.succeed();
    }
    println!();
}
