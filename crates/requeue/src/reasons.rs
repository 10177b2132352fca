//! The texts of reasons. All queues of a process share them.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::{LazyLock, PoisonError, RwLock};

use requeue_core::{Reason, ReasonCount, Reasons};

/// The maximum length of a text, in bytes.
const MAX_TEXT: usize = 80;
/// The text of the largest number. This number stands for all texts that got no separate number.
const OTHER: &str = "another reason";

/// All texts. They are never freed: there are at most 8,191 texts of at most 80 bytes.
static TEXTS: LazyLock<RwLock<Texts>> = LazyLock::new(RwLock::default);

#[derive(Default)]
struct Texts {
    /// The text of each number. The first text has the number 1.
    texts: Vec<&'static str>,
    reasons: HashMap<&'static str, Reason>,
    callers: HashMap<Location<'static>, Reason>,
}

/// Returns the reason with this text, for [`Add::reason`](crate::Add::reason).
///
/// The same text always gives the same reason. The process stores all texts permanently. A text
/// should therefore name a kind of add, such as `Pod applied`, and not a single key or object.
/// [`add_caused_by`](crate::Queue::add_caused_by) also stores the object.
///
/// A process can have 8,190 different texts. All further texts share one common reason. A text is
/// cut after 80 bytes, and its control characters become spaces.
///
/// # Examples
///
/// ```
/// use requeue::{Add, Queue, intern_reason, reason_text};
///
/// let applied = intern_reason("Pod applied");
/// let queue = Queue::new();
/// queue.add_with("web", Add::now().reason(applied));
/// queue.add_with("web", Add::now().reason(applied));
///
/// let reasons = queue.try_get().unwrap().reasons();
/// let count = reasons.iter().next().unwrap();
/// assert_eq!((reason_text(count.reason), count.adds), ("Pod applied", 2));
/// ```
#[must_use]
pub fn intern_reason(text: &str) -> Reason {
    let texts = TEXTS.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(&reason) = texts.reasons.get(text) {
        return reason;
    }
    // The cleaned text may already have a number. Repeated adds then do not acquire the write lock.
    let text = clean_text(text);
    if let Some(reason) = texts.find(&text) {
        return reason;
    }
    drop(texts);
    let mut texts = TEXTS.write().unwrap_or_else(PoisonError::into_inner);
    texts.intern(text)
}

/// Returns the reason whose text is the location of the caller, such as `src/main.rs:12`.
///
/// If a function with `#[track_caller]` calls this function, the location is that function's caller.
///
/// # Examples
///
/// ```
/// use requeue::{Add, Queue, caller_reason, reason_text};
///
/// let queue = Queue::new();
/// queue.add_with("web", Add::now().reason(caller_reason()));
/// let reasons = queue.reasons(&"web");
/// assert!(reason_text(reasons.iter().next().unwrap().reason).contains(".rs:"));
/// ```
#[must_use]
#[track_caller]
pub fn caller_reason() -> Reason {
    let caller = *Location::caller();
    let texts = TEXTS.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(&reason) = texts.callers.get(&caller) {
        return reason;
    }
    drop(texts);
    let mut text = format!("{}:{}", caller.file(), caller.line());
    if text.len() > MAX_TEXT {
        // The end of a path is more useful than its beginning.
        let begin = text.len() - MAX_TEXT + '…'.len_utf8();
        let begin = text.char_indices().map(|(at, _)| at).find(|&at| at >= begin);
        text.replace_range(..begin.unwrap_or_default(), "…");
    }
    let mut texts = TEXTS.write().unwrap_or_else(PoisonError::into_inner);
    let reason = texts.intern(clean_text(&text));
    texts.callers.insert(caller, reason);
    reason
}

/// Returns the text of a reason that this process has created.
#[must_use]
pub fn reason_text(reason: Reason) -> &'static str {
    let texts = TEXTS.read().unwrap_or_else(PoisonError::into_inner);
    let text = texts.texts.get(usize::from(reason.number()) - 1).copied();
    text.unwrap_or(if reason.number() == Reason::MAX { OTHER } else { "an unknown reason" })
}

/// Formats the reasons of a run on one line.
///
/// # Examples
///
/// ```
/// use requeue::{Add, Queue, describe_reasons, intern_reason};
///
/// let queue = Queue::new();
/// queue.add_with("web", Add::now().reason(intern_reason("resync")));
/// for pod in ["default/a", "default/b", "default/c"] {
///     queue.add_caused_by("web", Add::now().reason(intern_reason("Pod applied")), pod);
/// }
/// let line = describe_reasons(&queue.reasons(&"web")).to_string();
/// assert_eq!(line, "resync; 3 x Pod applied (first default/a, last default/c)");
/// ```
pub fn describe_reasons(reasons: &Reasons) -> impl fmt::Display {
    Description(reasons)
}

impl Texts {
    /// Returns the number for the next text. If all numbers are used, this is the largest number.
    fn next_reason(&self) -> Reason {
        let number = u16::try_from(self.texts.len() + 1).unwrap_or(Reason::MAX);
        let reason = Reason::new(number.min(Reason::MAX));
        reason.unwrap_or_else(|| unreachable!("the largest number is a reason"))
    }

    /// Returns the reason of a text, unless the text needs a new number.
    fn find(&self, text: &str) -> Option<Reason> {
        let next = self.next_reason();
        self.reasons.get(text).copied().or_else(|| (next.number() == Reason::MAX).then_some(next))
    }

    fn intern(&mut self, text: String) -> Reason {
        if let Some(reason) = self.find(&text) {
            return reason;
        }
        let reason = self.next_reason();
        let text: &'static str = text.leak();
        self.texts.push(text);
        self.reasons.insert(text, reason);
        reason
    }
}

/// Returns the text on one line, and at most 80 bytes long.
fn clean_text(text: &str) -> String {
    let text = text.trim();
    let is_long = text.len() > MAX_TEXT;
    let most = if is_long { MAX_TEXT - '…'.len_utf8() } else { MAX_TEXT };
    let kept = text.char_indices().take_while(|(at, c)| at + c.len_utf8() <= most);
    let mut cut: String = kept.map(|(_, c)| if c.is_control() { ' ' } else { c }).collect();
    if is_long {
        cut.push('…');
    }
    cut
}

struct Description<'r>(&'r Reasons);

impl fmt::Display for Description<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for ReasonCount { reason, adds, first, last, .. } in self.0.iter() {
            f.write_str(std::mem::replace(&mut separator, "; "))?;
            if *adds > 1 {
                write!(f, "{adds} x ")?;
            }
            f.write_str(reason_text(*reason))?;
            match (first, last) {
                (Some(first), Some(last)) if first != last => {
                    write!(f, " (first {first}, last {last})")?;
                }
                (Some(cause), _) => write!(f, " ({cause})")?,
                _ => {}
            }
        }
        match self.0.others() {
            0 => Ok(()),
            others => write!(f, "; {others} x {OTHER}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_one_reason_and_is_one_short_line() {
        let reason = intern_reason(" tests:\ta line\n");
        assert_eq!(reason_text(reason), "tests: a line");
        assert_eq!(intern_reason("tests: a line"), reason);
        assert_ne!(intern_reason("tests: another line"), reason);
        let long = reason_text(intern_reason(&"ü".repeat(100)));
        assert!(long.len() <= MAX_TEXT && long.ends_with("ü…"), "{long}");
    }

    #[test]
    fn a_process_without_numbers_has_one_common_reason() {
        let mut texts = Texts::default();
        let numbers: Vec<u16> = (0..9000).map(|n| texts.intern(n.to_string()).number()).collect();
        assert!(numbers[..8190].iter().copied().eq(1..Reason::MAX));
        assert!(numbers[8190..].iter().all(|&number| number == Reason::MAX));
        assert_eq!(texts.intern("7".to_owned()).number(), 8);
        let found = ["7", "another"].map(|text| texts.find(text).map(Reason::number));
        assert_eq!(found, [Some(8), Some(Reason::MAX)]);
        assert_eq!(Texts::default().find("another"), None);
        assert_eq!(Reason::new(Reason::MAX).map(reason_text), Some(OTHER));
    }

    #[test]
    fn each_caller_has_a_reason() {
        let reasons = [(); 2].map(|()| caller_reason());
        assert_eq!(reasons[0], reasons[1]);
        assert_ne!(caller_reason(), reasons[0]);
        let file = reason_text(reasons[0]).rsplit_once(':').map(|(file, _)| file);
        assert!(file.is_some_and(|file| file.ends_with("reasons.rs")), "{file:?}");
    }
}
