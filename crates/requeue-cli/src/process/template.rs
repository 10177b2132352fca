//! The command template. A key replaces its placeholders, and is never parsed again.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::exit::Refusal;
use crate::key::{escaped, shown};
use crate::process::shells::{self, find};

/// A command line with placeholders for the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Template {
    program: Word,
    args: Vec<Word>,
    /// The reason why the command may not be safe with untrusted keys.
    pub(crate) warning: Option<String>,
    /// Variables that hold a password of this process. They are removed from the environment of commands.
    pub(crate) hidden: Vec<&'static str>,
}

/// One argument, cut at its placeholders. The key goes between adjacent pieces.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Word(Vec<Vec<u8>>);

impl Word {
    fn cut(word: &OsStr, mark: &[u8]) -> Self {
        let (mut pieces, mut rest) = (Vec::new(), word.as_bytes());
        while let Some(at) = find(rest, mark) {
            pieces.push(rest[..at].to_vec());
            rest = &rest[at + mark.len()..];
        }
        pieces.push(rest.to_vec());
        Self(pieces)
    }

    fn literal(word: impl Into<OsString>) -> Self {
        Self(vec![word.into().into_vec()])
    }

    /// Returns a word that is only the key.
    fn key() -> Self {
        Self(vec![Vec::new(), Vec::new()])
    }

    fn has_mark(&self) -> bool {
        self.0.len() > 1
    }

    /// Inserts the key. A placeholder inside the key is not replaced.
    fn with(&self, key: &[u8]) -> OsString {
        OsString::from_vec(self.0.join(key))
    }
}

impl Template {
    /// Parses `COMMAND ARG...`. Without a placeholder, the key becomes the last argument.
    pub(crate) fn command(words: Vec<OsString>, mark: Option<&OsStr>) -> Result<Self, Refusal> {
        let mark = check(mark)?;
        if words.is_empty() {
            return Err(Refusal::usage("no COMMAND"));
        }
        let warning = shells::refuse_code_from_keys(&words, mark)?;
        let mut words = words.iter().map(|word| Word::cut(word, mark));
        let program = words.next().unwrap_or_else(Word::key);
        let mut args: Vec<Word> = words.collect();
        if !program.has_mark() && !args.iter().any(Word::has_mark) {
            args.push(Word::key());
        }
        Ok(Self { program, args, warning, hidden: Vec::new() })
    }

    /// Returns the template `sh -c SCRIPT _ KEY`. The script is not changed.
    pub(crate) fn script(script: OsString, mark: Option<&OsStr>) -> Result<Self, Refusal> {
        shells::refuse_mark_in_script(&script, check(mark)?, None)?;
        let args =
            vec![Word::literal("-c"), Word::literal(script), Word::literal("_"), Word::key()];
        Ok(Self { program: Word::literal("sh"), args, warning: None, hidden: Vec::new() })
    }

    /// Refuses a command with a placeholder, if no key replaces it.
    pub(crate) fn refuse_mark(words: &[OsString], mark: Option<&OsStr>) -> Result<(), Refusal> {
        let mark = check(mark)?;
        match words.iter().find(|word| Word::cut(word, mark).has_mark()) {
            None => Ok(()),
            Some(word) => Err(Refusal::usage(format!(
                "{}: a run for all files has no path as an argument; read the paths from standard input or \
                 from REQUEUE_PATHS",
                escaped(word.as_bytes())
            ))),
        }
    }

    /// Removes the key from the end of the arguments.
    pub(crate) fn without_key(mut self) -> Self {
        self.args.pop_if(|word| *word == Word::key());
        self
    }

    /// Returns the name of the command, unless it depends on the key.
    pub(crate) fn fixed_program(&self) -> Option<OsString> {
        (!self.program.has_mark()).then(|| self.program.with(b""))
    }

    /// Returns the name of the command with its placeholders.
    pub(crate) fn shown_program(&self) -> OsString {
        self.program.with(b"{}")
    }

    pub(crate) fn program(&self, key: &[u8]) -> OsString {
        self.program.with(key)
    }

    pub(crate) fn args(&self, key: &[u8]) -> impl Iterator<Item = OsString> {
        self.args.iter().map(move |word| word.with(key))
    }
}

/// The text at the beginning of each line of a command's output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tag(Word);

impl Tag {
    pub(crate) fn key() -> Self {
        Self(Word::key())
    }

    pub(crate) fn string(text: &OsStr, mark: Option<&OsStr>) -> Result<Self, Refusal> {
        Ok(Self(Word::cut(text, check(mark)?)))
    }

    /// Returns the text for a key, which is made printable.
    pub(crate) fn of(&self, key: &[u8]) -> Vec<u8> {
        let mut tag = self.0.with(shown(key).as_bytes()).into_vec();
        tag.push(b'\t');
        tag
    }
}

fn check(mark: Option<&OsStr>) -> Result<&[u8], Refusal> {
    match mark.map(OsStr::as_bytes) {
        None => Ok(b"{}"),
        Some(b"") => Err(Refusal::usage("-I: the placeholder is empty; name one, as in -I @")),
        Some(mark) => Ok(mark),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(words: &[&str], mark: Option<&str>, key: &str) -> Vec<OsString> {
        let words = words.iter().map(OsString::from).collect();
        let template = Template::command(words, mark.map(OsStr::new)).unwrap();
        let key = key.as_bytes();
        std::iter::once(template.program(key)).chain(template.args(key)).collect()
    }

    #[test]
    fn a_key_is_put_in_once_and_never_into_itself() {
        assert_eq!(filled(&["a", "{}", "x{}y{}"], None, "{}{}"), ["a", "{}{}", "x{}{}y{}{}"]);
        assert_eq!(filled(&["a", "{{}}"], None, "k"), ["a", "{k}"]);
        assert_eq!(filled(&["a", "%%%"], Some("%%"), "k"), ["a", "k%"]);
    }

    #[test]
    fn without_a_mark_the_key_is_appended() {
        assert_eq!(filled(&["a", "b"], None, "k"), ["a", "b", "k"]);
        assert_eq!(filled(&["a", "{}"], Some("@"), "k"), ["a", "{}", "k"]);
        assert_eq!(filled(&["bin/{}", "b"], None, "k"), ["bin/k", "b"]);
    }
}
