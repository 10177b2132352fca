//! Keys. A key is a sequence of bytes, because engines and programs in other languages share keys.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The name of something that may need work. A key has up to 2,048 bytes, and in most cases is text.
///
/// Adds of equal keys are coalesced. Clones of a key share its bytes.
///
/// # Examples
///
/// ```
/// use requeue_store::Key;
///
/// let key = Key::from("default/web");
/// assert_eq!(&*key, b"default/web");
/// assert_eq!(key.as_str(), Some("default/web"));
/// assert_eq!(key.to_string(), "default/web");
/// assert_eq!(Key::from(vec![b'a', 0xff]).to_string(), "a\\xff");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// The maximum length of a key in bytes. An index of PostgreSQL cannot contain a longer key.
    pub const MAX_LENGTH: usize = 2048;

    /// Returns the key as text, or `None` if it is not valid UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    pub(crate) fn is_too_long(&self) -> bool {
        self.0.len() > Self::MAX_LENGTH
    }
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Key {
    fn from(key: &[u8]) -> Self {
        Self(key.into())
    }
}

impl From<Vec<u8>> for Key {
    fn from(key: Vec<u8>) -> Self {
        Self(key.into())
    }
}

impl From<&str> for Key {
    fn from(key: &str) -> Self {
        Self(key.as_bytes().into())
    }
}

impl From<String> for Key {
    fn from(key: String) -> Self {
        Self(key.into_bytes().into())
    }
}

impl From<&Self> for Key {
    fn from(key: &Self) -> Self {
        key.clone()
    }
}

/// Writes the key as text. Escapes control characters, backslashes and bytes that are not UTF-8.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    c if c.is_control() => write!(f, "{}", c.escape_debug())?,
                    '\\' => f.write_str("\\\\")?,
                    c => write!(f, "{c}")?,
                }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}
