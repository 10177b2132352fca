//! Fuzzes lists of exit codes, and conditions for halting.

use requeue_cli::fuzz_api;

use super::number;

/// A number above all exit codes.
const AMONG: i32 = 300;

/// The signals whose numbers are the same on all systems.
const SIGNALS: [(&str, u8); 12] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("FPE", 8),
    ("KILL", 9),
    ("SEGV", 11),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
];

pub(super) fn codes(text: &str) {
    let read = fuzz_api::codes(text, AMONG);
    let mut expected = [false; AMONG as usize];
    let mut parts = text.split(',').map(str::trim);
    let is_right = parts.all(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let known = (number(first), number(last));
        if let (Some(first @ 1..=255), Some(last @ 1..=255)) = known {
            expected[first as usize..=(last as usize).max(first as usize - 1)].fill(true);
            return first <= last;
        }
        let name = part.to_ascii_uppercase();
        let name = name.strip_prefix("SIG").unwrap_or(&name);
        let signal = SIGNALS.iter().find(|signal| signal.0 == name);
        signal.map(|signal| expected[128 + usize::from(signal.1)] = true).is_some()
    });
    match read {
        Ok(read) if is_right => {
            assert!((0..AMONG).filter(|&code| expected[code as usize]).eq(read), "{text:?}");
        }
        // The text may also name a signal that the list above does not contain.
        Ok(read) => {
            assert!(text.contains(|char: char| char.is_ascii_alphabetic()), "{text:?}");
            assert!(read.iter().all(|code| (1..=255).contains(code)), "{text:?}: {read:?}");
        }
        Err(said) => assert!(!is_right && !said.is_empty(), "{text:?}: {said}"),
    }
}

pub(super) fn halt(text: &str) -> Option<String> {
    if text == "never" {
        return Some("None".to_owned());
    }
    let levels = [("soon", "Stopping"), ("now", "Terminating")];
    let whats = [("fail", "Fail"), ("success", "Success"), ("done", "Done")];
    for ((when, level), (why, what)) in
        levels.iter().flat_map(|level| whats.map(|what| (level, what)))
    {
        let Some(often) = text.strip_prefix(&format!("{when},{why}=")) else { continue };
        let (digits, kind, most) = match often.strip_suffix('%') {
            None => (often, "Times", u64::MAX),
            Some(percent) => (percent, "Percent", 100),
        };
        let often = number(digits).filter(|often| (1..=most.into()).contains(often))?;
        return Some(format!(
            "Some(Halt {{ level: {level}, what: {what}, often: {kind}({often}) }})"
        ));
    }
    None
}
