//! Converts keys to text, and text to keys.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use requeue::Key;

/// A key that consists of text or bytes: `String`, `Vec<u8>`, or a box or an `Arc` of `str` or
/// `[u8]`.
///
/// For a queue with other keys, use [`Site::builder_with`](crate::Site::builder_with).
pub trait ByteKey: Key {
    // The methods are hidden, because other types need not implement this trait.
    // `Site::builder_with` accepts functions for them instead.
    /// Returns the bytes that represent the key on the site. Different keys must have different
    /// bytes.
    #[doc(hidden)]
    fn to_bytes(&self) -> Cow<'_, [u8]>;

    /// Returns the key that these bytes represent, or `None` if they represent no key.
    #[doc(hidden)]
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

macro_rules! text {
    ($($key:ty),*) => {$(
        impl ByteKey for $key {
            fn to_bytes(&self) -> Cow<'_, [u8]> {
                Cow::Borrowed(self.as_bytes())
            }

            fn from_bytes(bytes: &[u8]) -> Option<Self> {
                std::str::from_utf8(bytes).ok().map(Into::into)
            }
        }
    )*};
}

macro_rules! bytes {
    ($($key:ty),*) => {$(
        impl ByteKey for $key {
            fn to_bytes(&self) -> Cow<'_, [u8]> {
                Cow::Borrowed(self)
            }

            fn from_bytes(bytes: &[u8]) -> Option<Self> {
                Some(bytes.into())
            }
        }
    )*};
}

text!(String, Box<str>, Arc<str>);
bytes!(Vec<u8>, Box<[u8]>, Arc<[u8]>);

/// The maximum number of bytes of a key that are shown. A longer key is cut.
pub(crate) const SHOWN: usize = 4096;

/// Converts bytes to printable text on one line, with escapes. Different bytes result in different
/// texts.
pub(crate) fn escape_key(bytes: &[u8]) -> Cow<'_, str> {
    // Control characters are escaped, because a key must not control the terminal, or the
    // direction of other text.
    let is_plain = |char: char| match char {
        '\\' => false,
        // These characters are printable. This case avoids `escape_debug`, which is slower because
        // it searches a table.
        ' '..='~' => true,
        _ => char.escape_debug().len() == 1,
    };
    if let Ok(text) = std::str::from_utf8(bytes)
        && text.chars().all(is_plain)
    {
        return Cow::Borrowed(text);
    }
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            if is_plain(char) {
                text.push(char);
            } else {
                text.extend(char.escape_debug());
            }
        }
        for byte in chunk.invalid() {
            // The result is ignored, because writing to a string does not fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    Cow::Owned(text)
}

const PADDING: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const BASE64: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, PADDING);

pub(crate) fn to_base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Decodes base64, in the standard or the URL-safe alphabet, with or without padding.
pub(crate) fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    let standard = |&byte: &u8| match byte {
        b'-' => b'+',
        b'_' => b'/',
        // If a client does not encode a `+` in a query, the parser of the query converts it to a
        // space.
        b' ' => b'+',
        byte => byte,
    };
    BASE64.decode(text.iter().map(standard).collect::<Vec<_>>()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_shown_as_one_line_of_text() {
        for (key, text) in [
            (&b"default/web"[..], "default/web"),
            (b"it's \"it\"", "it's \"it\""),
            (b"a\nb\t\x1b[31m", r"a\nb\t\u{1b}[31m"),
            (br"a\nb", r"a\\nb"),
            (b"\xff\xfe a", r"\xff\xfe a"),
            ("größe".as_bytes(), "größe"),
            ("\u{202e}gnp.exe".as_bytes(), r"\u{202e}gnp.exe"),
        ] {
            assert_eq!(escape_key(key), text);
        }
    }

    #[test]
    fn base64_is_read_as_it_comes() {
        let bytes = b"\xfb\xff\xfe?";
        assert_eq!(to_base64(bytes), "+//+Pw==");
        for text in ["+//+Pw==", "+//+Pw", "-__-Pw", " //+Pw=="] {
            assert_eq!(from_base64(text.as_bytes()).as_deref(), Some(&bytes[..]), "{text}");
        }
        assert_eq!(from_base64(b"?"), None);
    }
}
