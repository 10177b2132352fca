//! The template of the command. The key replaces the placeholders, and is never parsed itself.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::exit::Refusal;
use crate::key::{escaped, shown};
use crate::process::mark::{Marks, Part};
use crate::process::shells;

/// A command line with placeholders for the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Template {
    /// The name of the program, with its placeholders, as the user wrote it.
    given: OsString,
    program: Word,
    args: Vec<Word>,
    /// The environment variables that contain a password of this process. They are removed from the environment of
    /// commands.
    pub(crate) hidden: Vec<&'static str>,
}

/// One word of the command line. It consists of the text before the first placeholder, and of each placeholder with
/// the text after it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Word {
    start: Vec<u8>,
    rest: Vec<(Part, Vec<u8>)>,
}

impl Word {
    fn parse_word(word: &OsStr, marks: Marks<'_>) -> Self {
        let mut text = word.as_bytes();
        let mut cut = Self { start: Vec::new(), rest: Vec::new() };
        while let Some((place, part)) = marks.find_first(text) {
            cut.last_text().extend_from_slice(&text[..place.start]);
            cut.rest.push((part, Vec::new()));
            text = &text[place.end..];
        }
        cut.last_text().extend_from_slice(text);
        cut
    }

    /// Returns the text after the last placeholder.
    fn last_text(&mut self) -> &mut Vec<u8> {
        self.rest.last_mut().map_or(&mut self.start, |(_, text)| text)
    }

    fn literal(word: impl Into<OsString>) -> Self {
        Self { start: word.into().into_vec(), rest: Vec::new() }
    }

    /// Returns a word that consists of only the key.
    fn only_key() -> Self {
        Self { start: Vec::new(), rest: vec![(Part::Key, Vec::new())] }
    }

    fn has_mark(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Returns the word with the parts of the key in place of its placeholders. `write` converts each part. A
    /// placeholder that the key itself contains is not replaced.
    fn fill_with<T: AsRef<[u8]>>(&self, key: &[u8], write: impl Fn(&[u8]) -> T) -> Vec<u8> {
        let mut word = self.start.clone();
        for (part, text) in &self.rest {
            word.extend_from_slice(write(part.part_of(key)).as_ref());
            word.extend_from_slice(text);
        }
        word
    }

    /// Returns the word for a key as an argument.
    fn fill_arg(&self, key: &[u8]) -> OsString {
        OsString::from_vec(self.fill_with(key, <[u8]>::to_vec))
    }
}

impl Template {
    /// Parses `COMMAND ARG...`. If no word contains a placeholder, the key becomes the last argument.
    pub(crate) fn from_words(words: Vec<OsString>, mark: Option<&OsStr>) -> Result<Self, Refusal> {
        let marks = Marks::from_flag(mark)?;
        let Some(given) = words.first().cloned() else {
            return Err(Refusal::usage("no COMMAND"));
        };
        words.iter().try_for_each(|word| marks.refuse_others(word))?;
        shells::refuse_code_from_keys(&words, marks)?;
        let mut words = words.iter().map(|word| Word::parse_word(word, marks));
        let program = words.next().unwrap_or_else(Word::only_key);
        let mut args: Vec<Word> = words.collect();
        // As with xargs, a command without a placeholder receives the key as its last argument.
        if !program.has_mark() && !args.iter().any(Word::has_mark) {
            args.push(Word::only_key());
        }
        Ok(Self { given, program, args, hidden: Vec::new() })
    }

    /// Returns the template `sh -c SCRIPT _ KEY`. The script itself is not changed.
    pub(crate) fn from_script(script: OsString, mark: Option<&OsStr>) -> Result<Self, Refusal> {
        shells::refuse_mark_in_script(&script, Marks::from_flag(mark)?)?;
        let args =
            vec![Word::literal("-c"), Word::literal(script), Word::literal("_"), Word::only_key()];
        let program = Word::literal("sh");
        Ok(Self { given: "sh".into(), program, args, hidden: Vec::new() })
    }

    /// Refuses a command that contains a placeholder. The caller uses this if no key would replace the placeholder.
    pub(crate) fn refuse_mark(words: &[OsString], mark: Option<&OsStr>) -> Result<(), Refusal> {
        let marks = Marks::from_flag(mark)?;
        match words.iter().find(|word| marks.is_in(word)) {
            None => Ok(()),
            Some(word) => Err(Refusal::usage(format!(
                "{}: a run for all files has no path as an argument; read the paths from standard input or \
                 from REQUEUE_PATHS",
                escaped(word.as_bytes())
            ))),
        }
    }

    /// If the last argument is only the key, removes it.
    pub(crate) fn without_key(mut self) -> Self {
        self.args.pop_if(|word| *word == Word::only_key());
        self
    }

    /// Returns the name of the program. Returns `None` if it depends on the key.
    pub(crate) fn fixed_program(&self) -> Option<OsString> {
        (!self.program.has_mark()).then(|| self.given.clone())
    }

    /// Returns the name of the program, with its placeholders.
    pub(crate) fn given_program(&self) -> &OsStr {
        &self.given
    }

    pub(crate) fn program_for(&self, key: &[u8]) -> OsString {
        self.program.fill_arg(key)
    }

    pub(crate) fn args_for(&self, key: &[u8]) -> impl Iterator<Item = OsString> {
        self.args.iter().map(move |word| word.fill_arg(key))
    }
}

/// The text at the start of each line of a command's output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tag(Word);

impl Tag {
    pub(crate) fn of_key() -> Self {
        Self(Word::only_key())
    }

    pub(crate) fn from_text(text: &OsStr, mark: Option<&OsStr>) -> Result<Self, Refusal> {
        let marks = Marks::from_flag(mark)?;
        marks.refuse_others(text)?;
        Ok(Self(Word::parse_word(text, marks)))
    }

    /// Returns the text for a key. Characters of the key that are not printable are escaped.
    pub(crate) fn text_for(&self, key: &[u8]) -> Vec<u8> {
        let mut tag = self.0.fill_with(key, shown);
        tag.push(b'\t');
        tag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(words: &[&str], mark: Option<&str>, key: &str) -> Vec<OsString> {
        let words = words.iter().map(OsString::from).collect();
        let template = Template::from_words(words, mark.map(OsStr::new)).unwrap();
        let key = key.as_bytes();
        std::iter::once(template.program_for(key)).chain(template.args_for(key)).collect()
    }

    #[test]
    fn a_key_is_put_in_once_and_never_into_itself() {
        assert_eq!(filled(&["a", "{}", "x{}y{}"], None, "{}{}"), ["a", "{}{}", "x{}{}y{}{}"]);
        assert_eq!(filled(&["a", "{{}}"], None, "k"), ["a", "{k}"]);
        assert_eq!(filled(&["a", "%%%"], Some("%%"), "k"), ["a", "k%"]);
    }

    #[test]
    fn the_parts_of_a_path_have_marks() {
        let key = "d/{}.c";
        assert_eq!(filled(&["a", "{.}.o"], None, key), ["a", "d/{}.o"]);
        assert_eq!(filled(&["a", "{/}{//}{/.}"], None, key), ["a", "{}.cd{}"]);
        // With `-I`, only its value is a placeholder.
        assert_eq!(filled(&["a", "{.}"], Some("@"), key), ["a", "{.}", key]);
        let tag = Tag::from_text(OsStr::new("{/.}"), None).unwrap();
        assert_eq!(tag.text_for(b"\xff/a\n.c"), b"a\\n\t");
    }

    #[test]
    fn without_a_mark_the_key_is_appended() {
        assert_eq!(filled(&["a", "b"], None, "k"), ["a", "b", "k"]);
        assert_eq!(filled(&["a", "{}"], Some("@"), "k"), ["a", "{}", "k"]);
        assert_eq!(filled(&["bin/{}", "b"], None, "k"), ["bin/k", "b"]);
    }
}
