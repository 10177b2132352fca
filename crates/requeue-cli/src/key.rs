//! Keys, and the conversion of bytes to printable text. Keys are untrusted. A key must neither break a line of output
//! nor send control characters to a terminal.

use std::hash::RandomState;

/// The bytes of a record, which name something to work on. A boxed slice saves memory, because the program may hold a
/// million keys.
pub(crate) type Key = Box<[u8]>;

/// The queue of the program. An attacker may choose keys, and the dashboard lists keys in the order of their hashes.
/// With SipHash, an attacker cannot find keys with equal hashes.
pub(crate) type KeyQueue = requeue::Queue<Key, RandomState>;

/// The length of the longest key, in bytes. This is the longest argument that exec accepts on Linux.
pub(crate) const LONGEST: usize = 131_071;

/// Formats bytes as printable text on one line, in quotes. Leaves out all bytes after the first 200.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    const SHOWN: usize = 200;
    let text = escape(&bytes[..bytes.len().min(SHOWN)], &['"', '\\']);
    format!("\"{text}\"{}", if bytes.len() > SHOWN { "..." } else { "" })
}

/// Formats bytes as printable text on one line.
pub fn shown(bytes: &[u8]) -> String {
    escape(bytes, &['\\'])
}

/// Formats untrusted text as printable text on one line. Keys in the text have already been escaped, so backslashes
/// and quotes stay unchanged.
pub(crate) fn printable(text: &str) -> String {
    escape(text.as_bytes(), &[])
}

/// Escapes the characters that can control a terminal, except newlines and tabs. The escapes are valid in JSON, so
/// escaped JSON keeps its meaning.
pub(crate) fn without_controls(bytes: &[u8]) -> Vec<u8> {
    let is_bidi = |char| matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut text = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '\n' | '\t' => text.push(char as u8),
                char if char.is_control() || is_bidi(char) => {
                    text.extend(format!("\\u{:04x}", u32::from(char)).into_bytes());
                }
                char => text.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        text.extend(chunk.invalid().iter().flat_map(|byte| format!("\\x{byte:02x}").into_bytes()));
    }
    text
}

fn escape(bytes: &[u8], special: &[char]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                // `escape_debug` would also escape quotes, which names may contain.
                '\'' | '"' | '\\' if !special.contains(&char) => text.push(char),
                _ => text.extend(char.escape_debug()),
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_one_line_of_text() {
        assert_eq!(escaped(b"a b"), r#""a b""#);
        assert_eq!(escaped(b"it's\n\xff\x1b[31m"), r#""it's\n\xff\u{1b}[31m""#);
        assert_eq!(escaped("größe".as_bytes()), "\"größe\"");
        assert_eq!(escaped(&[b'x'; 1000]).len(), 205);
        assert_eq!(escaped(b"\"a\\"), r#""\"a\\""#);
        assert_eq!(shown(b"it's \"a\\b\"\t\n"), r#"it's "a\\b"\t\n"#);
        assert_eq!(printable("it's \"a\\b\"\t\n\u{9b}\u{202e}"), r#"it's "a\b"\t\n\u{9b}\u{202e}"#);
        let mixed = "a\t\u{1b}[31m\u{7f}\u{9b}\u{202e}\u{2066}\u{2028}größe\r\n";
        let safe = "a\t\\u001b[31m\\u007f\\u009b\\u202e\\u2066\\u2028größe\\u000d\n";
        assert_eq!(without_controls(mixed.as_bytes()), safe.as_bytes());
        assert_eq!(without_controls(b"\x9b\xff"), b"\\x9b\\xff");
    }
}
