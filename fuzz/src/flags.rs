//! Whole command lines.

mod expected;
mod given;

use std::collections::BTreeMap;
use std::ffi::OsString;

use arbitrary::{Result, Unstructured};
use requeue_cli::door;

use self::given::{FLAGS, Given};

/// What is run for each key, and whether that can be.
const COMMANDS: [(&[&str], bool); 6] = [
    (&["sh"], true),
    (&["sh", "x{}", "-j", "--", "@"], true),
    (&["--", "sh", "-n1", "--null"], true),
    (&[], false),
    (&["requeue-knows-no-such-program"], false),
    (&["sh", "-c", "{} @"], false),
];

/// Flags in any order and spelling, and a command.
///
/// Oracle: what each flag was given says what is wrong with the line, one fault of which must be
/// named, or what every field of the configuration is.
pub fn flags(data: &[u8]) {
    let Ok((words, given, command)) = line(&mut Unstructured::new(data)) else { return };
    let read = door::config(&words);
    match (read, expected::faults(&given, command)) {
        (Ok(config), faults) if faults.is_empty() => {
            for (name, is) in expected::config(&given) {
                assert!(
                    is.allows(&config[name]),
                    "{name}: {}, not {is:?}: {words:?}",
                    config[name]
                );
            }
        }
        (Err(said), faults) if !faults.is_empty() => {
            assert!(
                faults.iter().any(|fault| said.contains(fault)),
                "{words:?}: {faults:?}: {said}"
            );
        }
        (read, faults) => panic!("{words:?}: {faults:?}, but {read:?}"),
    }
}

type Line = (Vec<OsString>, BTreeMap<&'static str, Given>, (&'static [&'static str], bool));

fn line(from: &mut Unstructured<'_>) -> Result<Line> {
    let mut words: Vec<OsString> = vec!["requeue".into(), "run".into()];
    let mut all: BTreeMap<_, Given> = BTreeMap::new();
    let command = *from.choose(&COMMANDS)?;
    while !from.is_empty() {
        let flag = from.choose(&FLAGS)?;
        let given = flag.kind.given(from)?;
        if let Some(before) = all.get_mut(flag.long) {
            // Which of these two is the last is a matter of its own.
            if ["null", "delimiter"].contains(&flag.long) {
                continue;
            }
            before.is_wrong = true;
        } else {
            all.insert(flag.long, given.clone());
        }
        words.extend(flag.spelt(&given.text, from)?.into_iter().map(OsString::from));
        // Each of them takes the other back, but for what was no delimiter.
        if flag.long == "null" {
            all.retain(|name, given| *name != "delimiter" || given.is_wrong);
        } else if flag.long == "delimiter" {
            all.remove("null");
        }
    }
    words.extend(command.0.iter().map(OsString::from));
    Ok((words, all, command))
}
