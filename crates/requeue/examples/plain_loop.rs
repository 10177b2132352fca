//! A loop without threads and without a runtime: a spreadsheet that computes its cells again after
//! a change.
//!
//! A cell that changes adds the cells that depend on it. If a cell is added twice before its
//! delivery, it is computed once. If a cell cannot be computed yet, it is retried.

use requeue::Queue;

/// Each cell, with the cells that depend on it.
const SHEET: [(&str, &[&str]); 4] =
    [("price", &["tax", "total"]), ("rate", &["tax"]), ("tax", &["total"]), ("total", &[])];

fn main() {
    let queue = Queue::new();
    queue.add_all(["price", "rate"]);

    // Processes the ready keys, the keys that their runs add, and the retries. The loop cannot use
    // `close`, because the runs add new keys, and `close` refuses new keys.
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
