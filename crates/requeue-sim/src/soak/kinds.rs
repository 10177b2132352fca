//! The queues that the soak test keeps busy for an hour.

use std::collections::VecDeque;
use std::time::Duration;

use foldhash::fast::FixedState;
use requeue::clock::FakeClock;
use requeue::limiter::{BackoffLimiter, Bucket, ExponentialFailure, MaxOf};
use requeue::{BuildError, Builder, CustomOrder, GroupId, Order, Queue, ReaddPolicy};

/// A namespace and a name. All names have the same length, so that the memory of a number of keys does not depend on
/// the choice of the keys.
pub(super) type Name = String;

/// A hasher with a fixed seed. With a random seed, tables would grow at different times in each
/// run.
const HASHER: FixedState = FixedState::with_seed(7);

/// A kind of queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// client-go's default limiter.
    Plain,
    /// The default settings, with tracked times.
    Held,
    /// Priorities, namespaces that take turns, and at most two keys of a namespace in flight.
    Fair,
    /// A custom order.
    Custom,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Plain, Self::Held, Self::Fair, Self::Custom];

    pub(super) fn build(
        self,
        clock: FakeClock,
        seed: u64,
    ) -> Result<Queue<Name, FixedState>, BuildError> {
        let builder = Queue::builder().clock(clock).hasher(HASHER);
        let backoff =
            BackoffLimiter::with_hasher(Duration::from_millis(5), Duration::from_secs(300), HASHER)
                .seed(seed);
        match self {
            Self::Plain => builder.limiter(client_go()),
            Self::Held => builder.readd_policy(ReaddPolicy::Hold).limiter(backoff).track_times(),
            Self::Fair => builder
                .readd_policy(ReaddPolicy::Replace)
                .limiter(backoff)
                .order(Order::Priority { oldest_every: 10 })
                .group_by(|name: &Name| GroupId::of(namespace(name)))
                .fair()
                .group_limit(2),
            Self::Custom => custom(builder).limiter(backoff),
        }
        .build()
    }
}

fn custom(builder: Builder<Name, FixedState>) -> Builder<Name, FixedState> {
    builder.order(Order::Custom(Box::new(Line(VecDeque::new()))))
}

/// client-go's `DefaultTypedControllerRateLimiter`.
fn client_go() -> MaxOf<Name> {
    let (base, max) = (Duration::from_millis(5), Duration::from_secs(1_000));
    let each = ExponentialFailure::with_hasher(base, max, HASHER);
    MaxOf::new(vec![Box::new(each), Box::new(Bucket::new(10.0, 100))])
}

/// Returns the name of the `number`th object. The object shares its namespace with 49 other objects.
pub(super) fn name(number: u64) -> Name {
    format!("namespace-{:08}/name-{number:010}", number / 50)
}

fn namespace(name: &str) -> &str {
    name.split_once('/').map_or(name, |(namespace, _)| namespace)
}

/// A custom order that is first in, first out.
struct Line(VecDeque<Name>);

impl CustomOrder<Name> for Line {
    fn push(&mut self, key: Name) {
        self.0.push_back(key);
    }

    fn touch(&mut self, _: &Name) {}

    fn pop(&mut self) -> Option<Name> {
        self.0.pop_front()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
