//! A loop without threads or a runtime: a spreadsheet whose cells are computed again after a
//! change.
//!
//! A cell that changes adds the cells that depend on it. A cell that is added twice before its
//! delivery is computed once. A cell that cannot be computed yet is retried.

use requeue::Queue;

/// Each cell, with the cells that depend on it.
const SHEET: [(&str, &[&str]); 4] =
    [("price", &["tax", "total"]), ("rate", &["tax"]), ("tax", &["total"]), ("total", &[])];

fn main() {
    let queue = Queue::new();
    queue.add_all(["price", "rate"]);

    // Handles the ready keys, the keys that they add, and the retries. The loop cannot use `close`,
    // because `close` refuses new keys, and these runs add new keys.
    while queue.states().total() > 0 {
        if queue.len() == 0 {
            println!("no key is ready: {}", queue.explain("rate"));
        }
        let Some(cell) = queue.get().blocking() else { break };
        if *cell == "rate" && cell.attempt() == 1 {
            cell.retry();
            println!("rate   not known yet: {}", queue.explain("rate"));
            continue;
        }
        compute(&queue, *cell, cell.adds());
        cell.succeed();
    }
    println!(
        "all cells are computed: {} runs for {} cells",
        queue.totals().deliveries,
        SHEET.len()
    );
}

fn compute(queue: &Queue<&'static str>, cell: &str, adds: u32) {
    let dependents = SHEET.iter().find(|(name, _)| *name == cell).map_or(&[][..], |entry| entry.1);
    let answers: Vec<_> = dependents.iter().map(|name| (name, queue.add(name))).collect();
    println!("{cell:5}  computed, for {adds} adds; then {answers:?}");
}
