//! Plain data types. The modules in this directory import no other modules of the crate.

mod add;
mod cancel;
mod delivery;
mod lifecycle;
mod pace;
mod reason;
mod slot;
mod time;

pub use self::add::{Add, Added, Cancelled, Merge, ReaddPolicy, When};
pub use self::cancel::{CancelReason, CancelledRun, InFlightPolicy};
pub use self::delivery::{Asked, Delivery, Finish, Finished, Popped, Ticket};
pub use self::lifecycle::{Ending, Phase};
pub use self::pace::Pace;
pub use self::reason::{Reason, ReasonCount, Reasons};
pub(crate) use self::slot::{Id, Slot, ids};
pub use self::time::{Shown, Time};
