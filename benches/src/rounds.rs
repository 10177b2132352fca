//! Measuring side by side.
//!
//! A machine is now faster, now slower. So the contenders of a table have short turns, round by
//! round, and are compared within a round.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Does so many operations, and says how long they took.
pub type Turn<'a> = Box<dyn FnMut(usize) -> Duration + 'a>;

/// Contenders for the same work; the first is what the others are compared with.
#[must_use]
pub struct Match<'a> {
    title: String,
    contenders: Vec<(&'static str, Turn<'a>)>,
}

impl<'a> Match<'a> {
    /// Nobody yet.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), contenders: Vec::new() }
    }

    /// One more, which does all it is told to in one go.
    pub fn with<R>(self, name: &'static str, mut operation: impl FnMut() -> R + 'a) -> Self {
        self.with_turn(name, move |operations| {
            let start = Instant::now();
            for _ in 0..operations {
                black_box(operation());
            }
            start.elapsed()
        })
    }

    /// One more, which takes the time itself.
    pub fn with_turn(
        mut self,
        name: &'static str,
        turn: impl FnMut(usize) -> Duration + 'a,
    ) -> Self {
        self.contenders.push((name, Box::new(turn)));
        self
    }

    /// Lets them have their turns, and prints what came of it.
    pub fn run(mut self, rounds: usize, operations: usize) {
        let mut nanos = vec![Vec::with_capacity(rounds); self.contenders.len()];
        for round in 0..rounds {
            for at in 0..self.contenders.len() {
                // Nobody always comes after the same.
                let at = (at + round) % self.contenders.len();
                let took = (self.contenders[at].1)(operations);
                nanos[at].push(took.as_nanos() as f64 / operations as f64);
            }
        }
        println!("{}", self.title);
        for (at, (name, _)) in self.contenders.iter().enumerate() {
            let ratios = nanos[at].iter().zip(&nanos[0]).map(|(ours, floor)| ours / floor);
            let ratios = sorted(ratios.collect());
            let ns = median(&sorted(nanos[at].clone()));
            let compared = if at == 0 {
                String::new()
            } else {
                let (low, high) = (ratios[0], ratios[ratios.len() - 1]);
                format!("{:7.2} x  [{low:.2} to {high:.2}]", median(&ratios))
            };
            println!("  {name:<44}{ns:>9.1} ns{compared}");
        }
        println!();
    }
}

fn sorted(mut list: Vec<f64>) -> Vec<f64> {
    list.sort_by(f64::total_cmp);
    list
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}
