//! The value of `--debounce`.

use std::time::Duration;

use crate::duration::parse_duration;

/// Parses `QUIET[,MAX]`: the time without adds after which a key starts, and the longest wait from its first add.
pub(crate) fn parse_debounce(text: &str) -> Result<(Duration, Option<Duration>), String> {
    let Some((quiet, max)) = text.split_once(',') else { return Ok((parse_duration(text)?, None)) };
    let (quiet, max) = (parse_duration(quiet)?, parse_duration(max)?);
    if max < quiet {
        return Err("the second time is the longest wait, and shorter than the first".to_owned());
    }
    Ok((quiet, Some(max)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debounce_is_a_quiet_time_and_a_longest_wait() {
        let millis = Duration::from_millis;
        assert_eq!(parse_debounce("300ms"), Ok((millis(300), None)));
        assert_eq!(parse_debounce("300ms,5s"), Ok((millis(300), Some(millis(5_000)))));
        assert_eq!(parse_debounce("2,2"), Ok((millis(2_000), Some(millis(2_000)))));
        for wrong in ["", "a", "1s,", ",1s", "1s,2s,3s", "2s,1s"] {
            assert!(parse_debounce(wrong).is_err(), "{wrong}");
        }
    }
}
