//! What client-go and apimachinery did, recorded, for requeue to do alike.
//!
//! The sequences lie in `traces/client-go.txt.gz`; `docs/CONFORMANCE.md` says how to read one, and
//! `client-go/` beside this is what records them. The tests of this crate replay them.

use std::io::{self, Read};

use flate2::read::GzDecoder;

static PACKED: &[u8] = include_bytes!("../traces/client-go.txt.gz");

/// All that was recorded, as text.
///
/// # Errors
///
/// When the file is no such text.
pub fn recorded() -> io::Result<String> {
    let mut text = String::new();
    GzDecoder::new(PACKED).read_to_string(&mut text)?;
    Ok(text)
}

/// `name=value` pairs, in the order in which they stand.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fields<'t>(Vec<(&'t str, &'t str)>);

impl<'t> Fields<'t> {
    /// Those among the words of a line.
    #[must_use]
    pub fn of(line: &'t str) -> Self {
        Self(line.split(' ').filter_map(|word| word.split_once('=')).collect())
    }

    /// What is said of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'t str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// The parts of a list, which commas separate; none if nothing is said of `name`.
    pub fn list(&self, name: &str) -> impl Iterator<Item = &'t str> + use<'t> {
        self.get(name)
            .into_iter()
            .flat_map(|value| value.split(','))
            .filter(|part| !part.is_empty())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&'t str, &'t str)> + '_ {
        self.0.iter().copied()
    }
}

/// Something that was done, and what was seen of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step<'t> {
    /// The line as it stands.
    pub line: &'t str,
    /// What was done.
    pub did: &'t str,
    /// What was seen.
    pub saw: Fields<'t>,
}

/// What one seed led to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sequence<'t> {
    /// What it was made from.
    pub seed: u64,
    /// The first line.
    pub head: &'t str,
    /// What it is about: `queue`, `ties`, `limiter`, `backoff`, `manager` or `loop`.
    pub kind: &'t str,
    /// What it was made with.
    pub with: Fields<'t>,
    /// What was done.
    pub steps: Vec<Step<'t>>,
}

/// The sequences of a text; `None` if it is not one of ours.
#[must_use]
pub fn sequences(text: &str) -> Option<Vec<Sequence<'_>>> {
    let mut all: Vec<Sequence<'_>> = Vec::new();
    for line in text.lines() {
        if line.starts_with('#') {
            continue;
        }
        if let Some(head) = line.strip_prefix("sequence ") {
            let mut words = head.split(' ');
            let seed = words.next()?.parse().ok()?;
            let kind = words.next()?;
            let with = Fields::of(head);
            all.push(Sequence { seed, head, kind, with, steps: Vec::new() });
        } else {
            let (did, saw) = line.split_once(" |")?;
            all.last_mut()?.steps.push(Step { line, did, saw: Fields::of(saw) });
        }
    }
    Some(all)
}

/// A name with arguments in parentheses, which may have some of their own: `max_of(bucket(1,2),x)`.
#[must_use]
pub fn call(text: &str) -> (&str, Vec<&str>) {
    let Some((name, rest)) = text.split_once('(') else { return (text, Vec::new()) };
    let inner = rest.strip_suffix(')').unwrap_or(rest);
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&inner[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[from..]);
    (name, parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_the_arguments_of_its_own_level() {
        assert_eq!(call("none"), ("none", vec![]));
        assert_eq!(call("a(b(1,2),c,d(e(3)))"), ("a", vec!["b(1,2)", "c", "d(e(3))"]));
    }

    #[test]
    fn a_text_is_sequences_of_steps() {
        let text = "# head\nsequence 7 queue keys=a,b\nadd a | len=1 got=a,b\nget |\n";
        let all = sequences(text).expect("it is one of ours");
        assert_eq!((all[0].seed, all[0].kind, all[0].with.get("keys")), (7, "queue", Some("a,b")));
        assert_eq!((all[0].steps[0].did, all[0].steps[1].did), ("add a", "get"));
        assert_eq!(all[0].steps[0].saw.list("got").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(all[0].steps[1].saw.list("got").count(), 0);
        assert_eq!(sequences("add a\n"), None);
    }
}
