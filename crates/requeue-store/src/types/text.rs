//! Cuts texts to a maximum length.

/// Returns the longest prefix of `text` that has at most `bytes` bytes and does not cut a character.
pub(crate) fn prefix(text: &str, bytes: usize) -> &str {
    // `str::floor_char_boundary` does the same, but needs Rust 1.91.
    let end = (0..=bytes.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// Returns the longest suffix of `text` that has at most `bytes` bytes and does not cut a character.
pub(crate) fn suffix(text: &str, bytes: usize) -> &str {
    let start =
        (text.len().saturating_sub(bytes)..=text.len()).find(|&at| text.is_char_boundary(at));
    &text[start.unwrap_or(text.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_is_cut() {
        let cut = [0, 1, 2, 3, 4, 5].map(|bytes| prefix("aé€", bytes));
        assert_eq!(cut, ["", "a", "a", "aé", "aé", "aé"]);
        let cut = [0, 1, 2, 3, 4, 5].map(|bytes| suffix("€éa", bytes));
        assert_eq!(cut, ["", "a", "a", "éa", "éa", "éa"]);
        assert_eq!([6, 7, usize::MAX].map(|bytes| suffix("€éa", bytes)), ["€éa"; 3]);
        assert_eq!([6, 7, usize::MAX].map(|bytes| prefix("aé€", bytes)), ["aé€"; 3]);
    }
}
