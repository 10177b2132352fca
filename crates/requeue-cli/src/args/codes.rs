//! Sets of exit codes, as in `--fatal 2,64-78,SIGSEGV`.

use std::ops::RangeInclusive;

use crate::process::signals::parse_signal;

/// A set of exit codes. As in a shell, the exit code for a signal is 128 plus the number of the signal.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Codes(Vec<RangeInclusive<i32>>);

impl Codes {
    pub(crate) fn contain(&self, exit: i32) -> bool {
        self.0.iter().any(|range| range.contains(&exit))
    }
}

/// Parses a list of codes, ranges of codes and names of signals.
pub(crate) fn parse_codes(text: &str) -> Result<Codes, &'static str> {
    text.split(',').map(|part| parse_range(part.trim())).collect::<Result<_, _>>().map(Codes)
}

fn parse_range(text: &str) -> Result<RangeInclusive<i32>, &'static str> {
    const WRONG: &str =
        "expected exit codes from 1 to 255, ranges or signals, as in 2,64-78,SIGSEGV";
    let code = |text: &str| text.parse().ok().filter(|code| (1..=255).contains(code)).ok_or(WRONG);
    if text.starts_with(|first: char| first.is_ascii_alphabetic()) {
        // A shell reports this code for a command that was killed by the signal.
        let code = 128 + parse_signal(text).map_err(|_| WRONG)?.as_raw();
        return Ok(code..=code);
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (code(first)?, code(last)?);
    if first > last { Err(WRONG) } else { Ok(first..=last) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_numbers_ranges_and_signals() {
        let codes = parse_codes("2,64-78, SIGSEGV,kill").unwrap();
        let contained: Vec<_> = (0..300).filter(|&exit| codes.contain(exit)).collect();
        let expected: Vec<_> = [2].into_iter().chain(64..=78).chain([137, 139]).collect();
        assert_eq!(contained, expected);
        assert!(!Codes::default().contain(1));
        for text in ["", "0", "256", "2,", "5-3", "-1", "1-2-3", "SIGNONE", "x"] {
            assert!(parse_codes(text).is_err(), "{text}");
        }
    }
}
