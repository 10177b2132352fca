//! The flags, and what each can be given.

use std::time::Duration;

use arbitrary::{Result, Unstructured};

/// A flag of `requeue run`.
pub(super) struct Flag {
    pub(super) long: &'static str,
    /// `-I` has no other name.
    short: Option<char>,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    Switch,
    Time,
    /// From 1 on.
    Number,
    /// One of these, each with what it means as `Debug` shows it; all else is wrong.
    One(&'static [(&'static str, &'static str)]),
    /// Anything.
    Text(&'static [&'static str]),
}

use Kind::{Number, One, Switch, Text, Time};

const fn flag(long: &'static str, short: char, kind: Kind) -> Flag {
    let short = if short == ' ' { None } else { Some(short) };
    Flag { long, short, kind }
}

const FILES: Kind = Text(&["a", "-", "a b", "/no/such/file", "="]);

pub(super) const FLAGS: [Flag; 42] = [
    flag("arg-file", 'a', FILES),
    flag("null", '0', Switch),
    flag("delimiter", 'd', One(&[(",", "44"), ("\\t", "9"), ("\\x1e", "30"), ("\\036", "30")])),
    flag("input", ' ', One(&[("lines", "Lines"), ("json", "Json")])),
    flag("max-record", ' ', One(&[("1", "1"), ("64K", "65536"), ("2m", "2097152")])),
    flag("max-keys", ' ', Number),
    flag("I", 'I', Text(&["@", "{}", "%%", ""])),
    flag("shell", 'c', Text(&["echo \"$1\"", "echo {}", "echo @", ""])),
    flag("jobs", 'j', One(&[("1", "1"), ("3", "3"), ("0", ""), ("50%", ""), ("+7", "7")])),
    flag("stdin", ' ', One(&[("none", "None"), ("key", "Key")])),
    flag("timeout", ' ', Time),
    flag("signal", 's', One(&[("INT", "2"), ("sigkill", "9"), ("15", "15")])),
    flag("kill-after", ' ', Time),
    flag("verbose", 't', Switch),
    flag("dry-run", ' ', Switch),
    flag("rate", ' ', One(&[("10/s", "100ms"), ("60/m", "1s"), ("1/h", "3600s"), ("2", "500ms")])),
    flag("burst", ' ', Number),
    flag("delay", ' ', Time),
    flag("debounce", ' ', Time),
    flag("debounce-max", ' ', Time),
    flag("min-interval", ' ', Time),
    flag("order", ' ', One(&[("fifo", "Fifo"), ("priority", "Priority"), ("fair", "Fair")])),
    flag("group-by", ' ', One(&[("^a", "\"^a\""), ("(x)|y", "\"(x)|y\""), ("", "\"\"")])),
    flag("group-jobs", ' ', Number),
    flag("retries", ' ', One(&[("0", "Some(0)"), ("7", "Some(7)"), ("inf", "None")])),
    flag("base-delay", ' ', Time),
    flag("max-delay", ' ', Time),
    flag("early-add", ' ', One(&[("replace", "Replace"), ("hold", "Hold"), ("keep", "Keep")])),
    flag("fatal", ' ', One(&[("2,64-78", "[2..=2, 64..=78]"), ("SIGKILL", "[137..=137]")])),
    flag("dead-letter", ' ', FILES),
    flag(
        "halt",
        ' ',
        One(&[("never", "None"), ("soon,done=20%", SOON), ("now,fail=1", FAIL_FAST)]),
    ),
    flag("fail-fast", ' ', Switch),
    flag("output", ' ', One(&OUTPUTS)),
    flag("ungroup", 'u', Switch),
    flag("tag", ' ', Switch),
    flag("tagstring", ' ', Text(&["x", "{}", "<@>", ""])),
    flag("joblog", ' ', FILES),
    flag("progress", ' ', One(&[("auto", ""), ("always", "always"), ("never", "Not")])),
    flag("summary", ' ', One(&[("text", "Text"), ("json", "Json"), ("none", "None")])),
    flag("serve", ' ', One(&[("80", "None, port: 80"), ("[::1]:0", "Some(\"::1\"), port: 0")])),
    flag("at-eof", ' ', One(&[("finish", "Finish"), ("abandon", "Abandon")])),
    flag("keep-order", 'k', Switch),
];

pub(super) const SOON: &str = "Some(Halt { level: Stopping, what: Done, often: Percent(20) })";
pub(super) const FAIL_FAST: &str = "Some(Halt { level: Terminating, what: Fail, often: Times(1) })";
const OUTPUTS: [(&str, &str); 4] =
    [("lines", "Lines"), ("group", "Group"), ("inherit", "Inherit"), ("none", "None")];

/// What a flag was given.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) text: String,
    pub(super) is_wrong: bool,
    /// What it means, as `Debug` shows it.
    pub(super) shown: String,
    pub(super) time: Duration,
}

impl Kind {
    pub(super) fn given(&self, from: &mut Unstructured<'_>) -> Result<Given> {
        let (text, shown) = match self {
            Switch => (String::new(), "true".to_owned()),
            // No regular expression, no number, no word.
            Time | Number | One(_) if from.ratio(1, 32)? => ("??".to_owned(), String::new()),
            Time => {
                let (number, unit) =
                    (from.int_in_range(0..=70_u64)?, from.choose(&["ms", "s", "", "m", "d"])?);
                let time = match *unit {
                    "ms" => Duration::from_millis(number),
                    "m" => Duration::from_mins(number),
                    "d" => Duration::from_hours(24 * number),
                    _ => Duration::from_secs(number),
                };
                let (text, shown) = (format!("{number}{unit}"), format!("{time:?}"));
                return Ok(Given { text, is_wrong: false, shown, time });
            }
            Number => {
                let number: u32 = from.arbitrary::<u32>()? >> 20;
                (number.to_string(), number.to_string())
            }
            One(of) => {
                let (text, shown) = *from.choose(of)?;
                (text.to_owned(), shown.to_owned())
            }
            Text(some) => {
                let text = *from.choose(some)?;
                (text.to_owned(), format!("Some({text:?})"))
            }
        };
        let is_wrong = text == "??" || (matches!(self, Number) && text == "0");
        Ok(Given { text, is_wrong, shown, time: Duration::ZERO })
    }
}

impl Flag {
    /// The words for it, in one of its spellings.
    pub(super) fn spelt(&self, text: &str, from: &mut Unstructured<'_>) -> Result<Vec<String>> {
        let Self { long, short, .. } = self;
        let spelling = from.int_in_range(0..=3)?;
        let by_letter = short.filter(|_| spelling < 2 || *long == "I");
        Ok(match (by_letter, &self.kind) {
            (None, Switch) => vec![format!("--{long}")],
            (Some(letter), Switch) => vec![format!("-{letter}")],
            // What is empty, or begins so, can't be told from what follows.
            (Some(letter), _) if spelling % 2 == 0 || text.is_empty() || text.starts_with('=') => {
                vec![format!("-{letter}"), text.to_owned()]
            }
            (Some(letter), _) => vec![format!("-{letter}{text}")],
            (None, _) if spelling % 2 == 0 => vec![format!("--{long}"), text.to_owned()],
            (None, _) => vec![format!("--{long}={text}")],
        })
    }
}
