//! Recordings of client-go and apimachinery, with which requeue's behaviour is compared.
//!
//! The sequences are in `traces/client-go.txt.gz`; `README.md` describes their format,
//! and the program in `client-go/` records them. The tests of this crate replay them.

use std::io::{self, Read};

use flate2::read::GzDecoder;

static PACKED: &[u8] = include_bytes!("../traces/client-go.txt.gz");

/// Returns all recordings as text.
///
/// # Errors
///
/// Returns an error if the file is not compressed text.
pub fn recorded() -> io::Result<String> {
    let mut text = String::new();
    GzDecoder::new(PACKED).read_to_string(&mut text)?;
    Ok(text)
}

/// `name=value` pairs, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fields<'t>(Vec<(&'t str, &'t str)>);

impl<'t> Fields<'t> {
    /// Collects the pairs among the words of a line.
    #[must_use]
    pub fn of(line: &'t str) -> Self {
        Self(line.split(' ').filter_map(|word| word.split_once('=')).collect())
    }

    /// Returns the value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'t str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// Returns the elements of a list, which commas separate. Returns no elements if `name` is absent.
    pub fn list(&self, name: &str) -> impl Iterator<Item = &'t str> + use<'t> {
        self.get(name)
            .into_iter()
            .flat_map(|value| value.split(','))
            .filter(|part| !part.is_empty())
    }

    /// Returns all pairs.
    pub fn iter(&self) -> impl Iterator<Item = (&'t str, &'t str)> + '_ {
        self.0.iter().copied()
    }
}

/// An operation and its observed effects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step<'t> {
    /// The unchanged line.
    pub line: &'t str,
    /// The operation.
    pub did: &'t str,
    /// The effects.
    pub saw: Fields<'t>,
}

/// The operations that one seed produced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sequence<'t> {
    /// The seed.
    pub seed: u64,
    /// The first line.
    pub head: &'t str,
    /// The subject: `queue`, `ties`, `limiter`, `backoff`, `manager` or `loop`.
    pub kind: &'t str,
    /// The parameters.
    pub with: Fields<'t>,
    /// The operations.
    pub steps: Vec<Step<'t>>,
}

/// Parses the sequences of a recording. Returns `None` if the text is not a recording.
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

/// Parses a name with arguments in parentheses, which can also be calls: `max_of(bucket(1,2),x)`.
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
        let all = sequences(text).expect("the text is a recording");
        assert_eq!((all[0].seed, all[0].kind, all[0].with.get("keys")), (7, "queue", Some("a,b")));
        assert_eq!((all[0].steps[0].did, all[0].steps[1].did), ("add a", "get"));
        assert_eq!(all[0].steps[0].saw.list("got").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(all[0].steps[1].saw.list("got").count(), 0);
        assert_eq!(sequences("add a\n"), None);
    }
}
