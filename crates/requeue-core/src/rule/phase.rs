//! The state table of `docs/concepts/semantics.md`, as one `match` expression.

use crate::types::Phase;

/// An operation on a key: a row of the table. An operation that only sets a time changes no phase,
/// and has no row. When a due time has come, the operation is `Add`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Row {
    /// An add whose run is due now.
    Add,
    /// A delivery.
    Get,
    /// A completion.
    Done,
    /// The cancellation of the pending run.
    Cancel,
}

/// The effect of an operation on a key in one phase: a cell of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cell {
    /// The phase stays the same.
    Stay,
    /// → Ready, at the tail of the order.
    Enqueue,
    /// The key stays ready. If its priority was raised, it moves forward in the order.
    Lift,
    /// → InFlight.
    Start,
    /// → InFlightDirty.
    MarkDirty,
    /// → Idle, from InFlight.
    End,
    /// → Ready, at the tail of the order, from InFlightDirty.
    EndAndEnqueue,
    /// → Idle, from Ready.
    Dequeue,
    /// → InFlight, from InFlightDirty.
    Unmark,
}

/// Returns the effect of an operation on a key in `phase`.
#[inline(always)]
#[must_use]
pub const fn table(row: Row, phase: Phase) -> Cell {
    use Phase::{Idle, InFlight, InFlightDirty, Ready};
    match (row, phase) {
        (Row::Add, Idle) => Cell::Enqueue,
        (Row::Add, Ready) => Cell::Lift,
        (Row::Add, InFlight) => Cell::MarkDirty,
        (Row::Add, InFlightDirty) => Cell::Stay,

        (Row::Get, Idle) => Cell::Stay,
        (Row::Get, Ready) => Cell::Start,
        (Row::Get, InFlight) => Cell::Stay,
        (Row::Get, InFlightDirty) => Cell::Stay,

        (Row::Done, Idle) => Cell::Stay,
        (Row::Done, Ready) => Cell::Stay,
        (Row::Done, InFlight) => Cell::End,
        (Row::Done, InFlightDirty) => Cell::EndAndEnqueue,

        (Row::Cancel, Idle) => Cell::Stay,
        (Row::Cancel, Ready) => Cell::Dequeue,
        (Row::Cancel, InFlight) => Cell::Stay,
        (Row::Cancel, InFlightDirty) => Cell::Unmark,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text that describes a cell of [`table`] in `docs/concepts/semantics.md`.
    const fn on_the_page(cell: Cell) -> &'static str {
        match cell {
            Cell::Stay => "–",
            Cell::Enqueue | Cell::EndAndEnqueue => "→ Ready, at the tail",
            Cell::Lift => "keeps its place; a higher priority lifts it",
            Cell::Start => "the head of the order → InFlight",
            Cell::MarkDirty => "→ InFlightDirty",
            Cell::End | Cell::Dequeue => "→ Idle",
            Cell::Unmark => "→ InFlight",
        }
    }

    #[test]
    fn the_table_is_that_of_the_page() {
        let page = include_str!("../../docs/semantics.md");
        let phases = [Phase::Idle, Phase::Ready, Phase::InFlight, Phase::InFlightDirty];
        let rows = [
            (Row::Add, "| `add` |"),
            (Row::Get, "| `get` |"),
            (Row::Done, "| `done` |"),
            (Row::Cancel, "| `cancel` |"),
        ];
        for (row, begins) in rows {
            let line = page.lines().find(|line| line.starts_with(begins)).expect(begins);
            let cells = line.trim_matches('|').split('|').skip(1).map(str::trim);
            let cells = cells.map(|cell| match cell {
                "no change" | "`false`, no effect" => "–",
                cell => cell,
            });
            assert!(
                cells.eq(phases.map(|phase| on_the_page(table(row, phase)))),
                "{row:?}: {line}"
            );
        }
    }
}
