//! The placeholders in a command, and the parts of the key that replace them.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use crate::exit::Refusal;

/// The placeholders that a command can contain.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Marks<'a> {
    /// `{}`, which stands for the key, and GNU parallel's placeholders for the parts of a path.
    Braces,
    /// The value of `-I`, which stands for the key. No other placeholder is recognized.
    Own(&'a [u8]),
}

/// The part of the key that replaces a placeholder. The key is read as a path, even if it is not one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Key,
    /// The path without the extension of its last component.
    WithoutExtension,
    /// The last component of the path, as `basename` prints it.
    Name,
    /// The path without its last component, as `dirname` prints it.
    Directory,
    NameWithoutExtension,
}

/// The placeholders and their parts. No placeholder is a prefix of another one, so the order of the search does not
/// matter.
const BRACES: [(&str, Part); 5] = [
    ("{}", Part::Key),
    ("{.}", Part::WithoutExtension),
    ("{/}", Part::Name),
    ("{//}", Part::Directory),
    ("{/.}", Part::NameWithoutExtension),
];

/// Placeholders of GNU parallel that requeue refuses, and the environment variables with the same values.
const REFUSED: [(&str, &str); 2] = [("{#}", "REQUEUE_SEQ"), ("{%}", "REQUEUE_SLOT")];

impl<'a> Marks<'a> {
    /// Returns the placeholders for a value of `-I`. `None` means that the flag is missing.
    pub(crate) fn from_flag(mark: Option<&'a OsStr>) -> Result<Self, Refusal> {
        match mark.map(OsStr::as_bytes) {
            None => Ok(Self::Braces),
            Some(b"") => Err(Refusal::usage("-I: the placeholder is empty; name one, as in -I @")),
            Some(mark) => Ok(Self::Own(mark)),
        }
    }

    /// Returns the position of the first placeholder in `text`, and the part of the key that replaces it.
    pub(crate) fn find_first(self, text: &[u8]) -> Option<(Range<usize>, Part)> {
        match self {
            Self::Own(mark) => {
                find_bytes(text, mark).map(|start| (start..start + mark.len(), Part::Key))
            }
            Self::Braces => (0..text.len()).find_map(|start| {
                let here = |(mark, _): &&(&str, Part)| text[start..].starts_with(mark.as_bytes());
                let (mark, part) = BRACES.iter().find(here)?;
                let end = start + mark.len();
                // `{{.}}` is not a placeholder. It is an action of a Go template, as in `docker inspect -f '{{.}}'`.
                let is_action = *part != Part::Key
                    && text[..start].ends_with(b"{")
                    && text[end..].starts_with(b"}");
                (!is_action).then_some((start..end, *part))
            }),
        }
    }

    pub(crate) fn is_in(self, word: &OsStr) -> bool {
        self.find_first(word.as_bytes()).is_some()
    }

    /// Returns the placeholder for the whole key, as messages show it.
    pub(crate) fn key_mark(self) -> Cow<'a, str> {
        match self {
            Self::Braces => "{}".into(),
            Self::Own(mark) => String::from_utf8_lossy(mark),
        }
    }

    /// Refuses a word with a placeholder of GNU parallel that the command would receive unchanged. Accepts `${#}`,
    /// because shells have this expression.
    pub(crate) fn refuse_others(self, word: &OsStr) -> Result<(), Refusal> {
        if matches!(self, Self::Own(_)) {
            return Ok(());
        }
        for (mark, variable) in REFUSED {
            let at = find_bytes(word.as_bytes(), mark.as_bytes());
            if at.is_some_and(|at| at == 0 || word.as_bytes()[at - 1] != b'$') {
                return Err(Refusal::usage(format!(
                    "{mark}: not available; let the command read the variable {variable}. If it is not a \
                     placeholder, choose one with -I, as in -I @"
                )));
            }
        }
        Ok(())
    }
}

impl Part {
    pub(crate) fn part_of(self, key: &[u8]) -> &[u8] {
        match self {
            Self::Key => key,
            Self::WithoutExtension => without_extension(key),
            Self::Name => base_name(key),
            Self::Directory => directory_name(key),
            Self::NameWithoutExtension => without_extension(base_name(key)),
        }
    }
}

/// Returns the path without the extension of its last component. The extension begins at the last dot. A dot at the
/// start of the component marks a hidden file, and begins no extension.
fn without_extension(path: &[u8]) -> &[u8] {
    let start = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let name = &path[start..];
    match name.iter().rposition(|&byte| byte == b'.') {
        Some(dot) if dot > 0 && name != b".." => &path[..start + dot],
        _ => path,
    }
}

fn base_name(path: &[u8]) -> &[u8] {
    let whole = without_slashes(path);
    if whole.is_empty() {
        return &path[..path.len().min(1)];
    }
    let start = whole.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    &whole[start..]
}

fn directory_name(path: &[u8]) -> &[u8] {
    let whole = without_slashes(path);
    let slash = whole.iter().rposition(|&byte| byte == b'/');
    match slash.map(|slash| without_slashes(&whole[..slash])) {
        // The path is the root directory, or a name directly in it.
        Some(b"") => b"/",
        Some(directory) => directory,
        None if whole.is_empty() && !path.is_empty() => b"/",
        None => b".",
    }
}

/// Returns the path without the slashes at its end.
fn without_slashes(path: &[u8]) -> &[u8] {
    let last = path.iter().rposition(|&byte| byte != b'/');
    &path[..last.map_or(0, |last| last + 1)]
}

/// Returns the position of `needle` in `text`. `needle` must not be empty.
fn find_bytes(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_path_are_those_of_basename_and_dirname() {
        for (path, without_extension, name, directory, bare_name) in [
            ("a.txt", "a", "a.txt", ".", "a"),
            ("d/a.tar.gz", "d/a.tar", "a.tar.gz", "d", "a.tar"),
            ("d.x/a", "d.x/a", "a", "d.x", "a"),
            ("/a.b", "/a", "a.b", "/", "a"),
            ("//a", "//a", "a", "/", "a"),
            ("d//a", "d//a", "a", "d", "a"),
            ("d.x/", "d.x/", "d.x", ".", "d"),
            ("c/d.x//", "c/d.x//", "d.x", "c", "d"),
            ("d/.hidden", "d/.hidden", ".hidden", "d", ".hidden"),
            (".hidden.txt", ".hidden", ".hidden.txt", ".", ".hidden"),
            ("a.", "a", "a.", ".", "a"),
            ("..", "..", "..", ".", ".."),
            ("d/..", "d/..", "..", "d", ".."),
            ("/", "/", "/", "/", "/"),
            ("//", "//", "/", "/", "/"),
        ] {
            let part = |part: Part| String::from_utf8_lossy(part.part_of(path.as_bytes()));
            assert_eq!(part(Part::WithoutExtension), without_extension, "{path}");
            assert_eq!(part(Part::Name), name, "{path}");
            assert_eq!(part(Part::Directory), directory, "{path}");
            assert_eq!(part(Part::NameWithoutExtension), bare_name, "{path}");
        }
    }

    #[test]
    fn placeholders_that_are_not_available_are_refused_unless_a_shell_reads_them() {
        let refused = |word: &str| Marks::Braces.refuse_others(OsStr::new(word)).is_err();
        assert!(refused("{#}") && refused("out{%}.txt"));
        assert!(!refused("${#}") && !refused("{}") && !refused("{x}"));
        assert!(Marks::Own(b"@").refuse_others(OsStr::new("{#}")).is_ok());
    }
}
