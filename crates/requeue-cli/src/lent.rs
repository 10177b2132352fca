//! Keys that are lent: those of a queue elsewhere, which others take keys from, too. When and whether
//! one that has failed runs again is up to that.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use requeue::{Added, Item, Queue};

use crate::attempt::Outcome;
use crate::command::escaped;
use crate::given::Later;
use crate::input::Key;
use crate::letters::Death;
use crate::run::Runner;

/// Who lends keys.
pub(crate) trait Lender: Debug + Send + Sync {
    /// The next key, once there is one; `None` when no more come. Cancel safe.
    fn next(&self) -> Later<'_, Option<Box<dyn Loan>>>;

    /// No more keys are added from here: it ends when nothing is left to do.
    fn close(&self);

    /// Lends no more, and waits until all that nobody here runs any more has got back to it.
    fn settle(&self) -> Later<'_, ()>;

    /// What shows its keys.
    #[cfg(feature = "store")]
    fn page(&self) -> requeue_http::Builder<requeue_store::Key>;
}

/// A key that is lent for one run.
pub(crate) trait Loan: Debug + Send + Sync {
    fn key(&self) -> &[u8];

    /// 1, and one more for each failure before.
    fn attempt(&self) -> u32;

    fn priority(&self) -> i32;

    /// How many adds the run stands for.
    fn adds(&self) -> u32;

    /// The fencing token: a later loan of the key has a greater one.
    fn epoch(&self) -> u64;

    fn is_lost(&self) -> bool;

    /// Until it is lost: then somebody else may have the key.
    fn lost(&self) -> Later<'_, ()>;

    /// Gives it back, and answers whether that parked the key. Dropped after it was first polled, that
    /// still happens.
    fn end(self: Box<Self>, how: Back) -> Later<'static, Result<bool, String>>;
}

/// How a key is given back.
#[derive(Debug)]
#[cfg_attr(not(feature = "store"), expect(dead_code, reason = "there is no lender"))]
pub(crate) enum Back {
    Done,
    /// As if it had not been lent.
    AsItWas,
    /// For this reason; to be tried again, unless it has failed too often.
    Failed(String),
    /// For this reason, for good.
    GivenUp(String),
}

/// A key that is to be run.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) item: Item<'static, Key>,
    /// Of one that is lent.
    pub(crate) loan: Option<Box<dyn Loan>>,
}

/// Where keys are borrowed.
#[derive(Debug)]
pub(crate) struct Loans {
    pub(crate) lender: Arc<dyn Lender>,
    /// Of the keys in the queue here: each slot borrows one and puts it there, and takes one. So a
    /// key that was lost and is lent anew waits until its command here has ended.
    come: Mutex<HashMap<Key, Box<dyn Loan>>>,
}

impl Loans {
    pub(crate) fn new(lender: Arc<dyn Lender>) -> Self {
        Self { lender, come: Mutex::default() }
    }

    /// Borrows a key and puts it into the queue; `None` when there are no more.
    pub(crate) async fn borrow_into(&self, queue: &Queue<Key>) -> Option<()> {
        loop {
            let loan = self.lender.next().await?;
            let key = Key::from(loan.key());
            // Under the lock: whoever takes the key finds the loan.
            let mut come = self.come();
            // One of the same key that was there has been lost.
            come.insert(key.clone(), loan);
            match queue.add(key) {
                Added::New | Added::Dirty => return Some(()),
                Added::Refused => return None,
                // It has taken the place of that.
                _ => {}
            }
        }
    }

    pub(crate) fn of(&self, key: &Key) -> Option<Box<dyn Loan>> {
        self.come().remove(key)
    }

    /// Gives back what no command was started for, also what is only coming.
    pub(crate) async fn give_back(&self) {
        let come: Vec<_> = self.come().drain().collect();
        for (_, loan) in come {
            // What is lost is with others already.
            let _ = loan.end(Back::AsItWas).await;
        }
        self.lender.settle().await;
    }

    fn come(&self) -> MutexGuard<'_, HashMap<Key, Box<dyn Loan>>> {
        self.come.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runner {
    /// Gives a key back after a run. What its lender does not hear of in time has not happened.
    pub(crate) async fn give_back(
        &self,
        item: Item<'static, Key>,
        loan: Box<dyn Loan>,
        outcome: Outcome,
    ) {
        let (attempts, priority) = (loan.attempt(), loan.priority());
        let (back, exit) = match &outcome {
            Outcome::Unfinished => (Back::AsItWas, None),
            Outcome::Done => (Back::Done, None),
            Outcome::Failed { exit, why } if self.config.fatal.contain(*exit) => {
                (Back::GivenUp(why.clone()), Some(*exit))
            }
            Outcome::Failed { exit, why } => (Back::Failed(why.clone()), Some(*exit)),
            Outcome::Hopeless { why } => (Back::GivenUp(why.clone()), None),
        };
        let told = tokio::select! {
            biased;
            told = loan.end(back) => told,
            () = self.killed() => Err("how it ended was not said in time".to_owned()),
        };
        let key = item.key().clone();
        // Nothing more is to be known of it here.
        item.succeed();
        let (counts, is_parked) = (told.is_ok(), told.as_ref().is_ok_and(|&is_parked| is_parked));
        if let Err(why) = told {
            self.output.say(&format!("{}: {why}", escaped(&key))).await;
        }
        match outcome {
            Outcome::Unfinished => _ = self.tally.unfinished.one_more(),
            Outcome::Done if counts => {
                self.tally.done.one_more();
                self.look_whether_to_halt().await;
            }
            Outcome::Done => _ = self.tally.failures.one_more(),
            Outcome::Failed { why, .. } | Outcome::Hopeless { why } => {
                self.tally.failures.one_more();
                if is_parked {
                    self.tally.given_up.one_more();
                    let death = Death { attempts, exit, why: &why, priority };
                    let buried = self.letters.bury(&key, death);
                    let fate = ("parked", " (`requeue revive` runs it again)");
                    self.mourn(&key, fate, death, buried).await;
                }
            }
        }
    }
}
