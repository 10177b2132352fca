//! Fuzzes the substitution of keys in commands, and the display of keys.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use requeue_cli::fuzz_api;

/// The input consists of the mark, which may be empty, the key, and the words of a command, one per
/// line.
///
/// Oracle: the words are processed byte by byte. A command that is refused contains a shell, and
/// either the mark or no script. A displayed key has one line, and can be decoded again.
pub fn template(data: &[u8]) {
    let mut lines = data.split(|&byte| byte == b'\n');
    let (Some(mark), Some(key)) = (lines.next(), lines.next()) else { return };
    let words: Vec<OsString> = lines.map(|word| OsString::from_vec(word.to_vec())).collect();
    let given = (!mark.is_empty()).then(|| OsStr::from_bytes(mark));
    let is_refused = |word: &OsString| {
        let has = |mark: &[u8]| word.as_bytes().windows(3).any(|window| window == mark);
        given.is_none() && (has(b"{#}") || has(b"{%}"))
    };

    match fuzz_api::filled(words.clone(), given, key) {
        Ok(filled) => assert_eq!(filled, by_hand(&words, mark, key)),
        Err(said) if words.is_empty() => assert!(said.contains("no COMMAND"), "{said}"),
        Err(said) if said.contains("not available") => {
            assert!(words.iter().any(is_refused), "{words:?}: {said}");
        }
        Err(said) => {
            assert!(said.contains("a key inside a script"), "{said}");
            assert!(has_script(&words), "{words:?}: {said}");
        }
    }

    let shown = fuzz_api::shown(key);
    assert!(!shown.contains(char::is_control), "{shown:?}");
    assert_eq!(unescaped(&shown), key, "{shown}");
    for word in &words {
        match fuzz_api::tag(word, given, key) {
            Ok(tag) => {
                let text =
                    replaced(word.as_bytes(), mark, key, |part| fuzz_api::shown(part).into());
                assert_eq!(tag, [&text[..], b"\t"].concat());
            }
            Err(said) => assert!(is_refused(word), "{word:?}: {said}"),
        }
    }
}

fn by_hand(words: &[OsString], mark: &[u8], key: &[u8]) -> Vec<OsString> {
    let with =
        |word: &OsString| OsString::from_vec(replaced(word.as_bytes(), mark, key, <[u8]>::to_vec));
    let mut filled: Vec<_> = words.iter().map(with).collect();
    // A replacement with an empty text changes each word that contains the mark.
    let removed = |word: &OsString| replaced(word.as_bytes(), mark, key, |_| Vec::new());
    if words.iter().all(|word| removed(word) == word.as_bytes()) {
        filled.push(OsString::from_vec(key.to_vec()));
    }
    filled
}

fn replaced(mut word: &[u8], mark: &[u8], key: &[u8], write: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut replaced = Vec::new();
    let mut before = None;
    while let [first, others @ ..] = word {
        let found = if mark.is_empty() {
            ["{}", "{.}", "{/}", "{//}", "{/.}"].into_iter().find_map(|mark| {
                let rest = word.strip_prefix(mark.as_bytes())?;
                // The mark is part of an action of a Go template.
                let is_action = before == Some(b'{') && rest.first() == Some(&b'}');
                (mark == "{}" || !is_action).then(|| (part(mark, key), rest))
            })
        } else {
            word.strip_prefix(mark).map(|rest| (key.to_vec(), rest))
        };
        if let Some((part, rest)) = found {
            replaced.extend(write(&part));
            (before, word) = (None, rest);
        } else {
            replaced.push(*first);
            (before, word) = (Some(*first), others);
        }
    }
    replaced
}

/// The part of a key for a placeholder, from the components of the path.
fn part(mark: &str, key: &[u8]) -> Vec<u8> {
    let bare = |name: &[u8]| {
        let dot = name.iter().rposition(|byte| *byte == b'.')?;
        (dot > 0 && name != b"..").then(|| name[..dot].to_vec())
    };
    let mut components: Vec<&[u8]> = key.split(|&byte| byte == b'/').collect();
    if mark == "{}" {
        return key.to_vec();
    }
    if mark == "{.}" {
        let last = components.pop().unwrap_or_default();
        let last = bare(last).unwrap_or(last.to_vec());
        components.push(&last);
        return components.join(&b'/');
    }
    while components.len() > 1 && components.last().is_some_and(|name| name.is_empty()) {
        components.pop();
    }
    let is_root = key.starts_with(b"/");
    let name = match components.pop() {
        Some(b"") if is_root => b"/",
        name => name.unwrap_or_default(),
    };
    match mark {
        "{/}" => name.to_vec(),
        "{/.}" => bare(name).unwrap_or(name.to_vec()),
        _ => {
            while components.last().is_some_and(|name| name.is_empty()) {
                components.pop();
            }
            match components.join(&b'/') {
                directory if !directory.is_empty() => directory,
                _ if is_root => b"/".to_vec(),
                _ => b".".to_vec(),
            }
        }
    }
}

/// Returns true if a word is a program that runs scripts, and the command passes a script with `-c`, with `--command`
/// or in a group of short options.
fn has_script(words: &[OsString]) -> bool {
    let is_shell = |word: &OsString| {
        let name = word.as_bytes().rsplit(|&byte| byte == b'/').next();
        let name = name.unwrap_or_default();
        let end = name.iter().rposition(|byte| !matches!(byte, b'0'..=b'9' | b'.' | b'-'));
        let name = &name[..end.map_or(0, |last| last + 1)];
        // The names of all other such programs end in `sh`, or belong to programs that start
        // another program.
        [&b"flock"[..], b"runuser", b"script", b"su"].contains(&name) || name.ends_with(b"sh")
    };
    let takes_script = |word: &OsString| {
        let word = word.as_bytes();
        word.starts_with(b"-") && word.contains(&b'c')
    };
    let shell = words.iter().position(is_shell);
    shell.is_some_and(|shell| words[shell + 1..].iter().any(takes_script))
}

/// Decodes a displayed key.
fn unescaped(shown: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = shown;
    while let Some((before, escape)) = rest.split_once('\\') {
        bytes.extend(before.bytes());
        let (length, byte) = match escape.as_bytes() {
            [b'n', ..] => (1, b'\n'),
            [b'r', ..] => (1, b'\r'),
            [b't', ..] => (1, b'\t'),
            [b'0', ..] => (1, b'\0'),
            [b'\\', ..] => (1, b'\\'),
            [b'x', ..] => (3, u8::from_str_radix(&escape[1..3], 16).expect("two digits")),
            [b'u', b'{', ..] => {
                let end = escape.find('}').expect("an end");
                let code = u32::from_str_radix(&escape[2..end], 16).expect("digits");
                let char = char::from_u32(code).expect("a character");
                bytes.extend(char.encode_utf8(&mut [0; 4]).bytes());
                rest = &escape[end + 1..];
                continue;
            }
            other => panic!("\\{}", other.escape_ascii()),
        };
        bytes.push(byte);
        rest = &escape[length..];
    }
    bytes.extend(rest.bytes());
    bytes
}
