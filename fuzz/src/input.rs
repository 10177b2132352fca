//! Fuzzes the input formats of keys: lines, and JSON objects.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use requeue::Merge;
use requeue_cli::fuzz_api::{self, Asked};

use self::object::{Object, Reading};

mod object;

/// The maximum length of a key in bytes, which is the limit of exec.
const LONGEST: usize = 131_071;

/// The first byte selects how all other bytes are read: the delimiter, the format, the longest
/// record, and the size of the buffer.
///
/// Oracle: the input is split by hand. A line is its key. For an object, a second parser derives
/// the result from pairs of names and `serde_json::Value`s. Each record leads to one result, and
/// the message about a bad record names the record. An accepted key does not change when it is
/// written and read again.
pub fn input(data: &[u8]) {
    let Some((&how, data)) = data.split_first() else { return };
    let is_json = how & 1 == 0;
    let delimiter = [b'\n', b'\0', 0x1e, b','][usize::from(how >> 1 & 3)];
    let max_record = [1 << 20, 1 << 20, 64, 7][usize::from(how >> 3 & 3)];
    let buffer = [64 << 10, 3][usize::from(how >> 5 & 1)];

    let before = now();
    let read = fuzz_api::read(is_json, delimiter, max_record, buffer, data);
    let clock = before..=now();

    let mut read = read.into_iter();
    let mut records: Vec<_> = data.split(|&byte| byte == delimiter).collect();
    // There is no record after a final delimiter.
    records.pop_if(|last| last.is_empty());
    for (number, record) in (1..).zip(records) {
        let is_blank = if is_json { record.trim_ascii().is_empty() } else { record.is_empty() };
        if is_blank && record.len() <= max_record {
            continue;
        }
        let Some(read) = read.next() else { panic!("record {number} is lost: {record:?}") };
        let expected = match record {
            _ if record.len() > max_record => Err("bytes, and the limit of a record is"),
            _ if is_json => Object::read(record, &clock),
            line => checked(Reading::Add(Object::of(line.to_vec()))),
        };
        match (read, expected) {
            (Ok(asked), Ok(expected)) => {
                assert!(expected.allows(&asked), "{expected:?}, not {asked:?}");
                comes_back(&asked, is_json, delimiter);
            }
            (Err(said), Err(expected)) => {
                assert!(said.starts_with(&format!("record {number}: ")), "{number}: {said}");
                assert!(said.contains(expected), "{record:?}: {expected}, not {said}");
            }
            (read, expected) => panic!("{record:?}: {expected:?}, not {read:?}"),
        }
    }
    assert_eq!(read.next(), None, "more than there is");
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Rejects keys that cannot be passed to a command.
fn checked(reading: Reading) -> Result<Reading, &'static str> {
    let (Reading::Add(Object { key, .. }) | Reading::Cancel(key)) = &reading;
    match key.len() {
        0 => Err("not a key: it is empty"),
        length if length > LONGEST => Err("not a key: it has"),
        _ if key.contains(&b'\0') => Err("not a key: it has a NUL byte"),
        _ => Ok(reading),
    }
}

/// Checks that an accepted key can be written to a file of keys and read back unchanged.
fn comes_back(asked: &Asked, is_json: bool, delimiter: u8) {
    let Asked::Add { key, priority, .. } = asked else { return };
    let mut written = match is_json {
        true => fuzz_api::written(key, *priority),
        false => key.clone(),
    };
    // The command line refuses such a delimiter for JSON, because it occurs within objects.
    let delimiter = if is_json && delimiter >= b' ' { b'\n' } else { delimiter };
    assert!(!written.contains(&delimiter), "a record in two: {written:?}");
    written.push(delimiter);
    let read = fuzz_api::read(is_json, delimiter, usize::MAX, 64, &written);
    let [Ok(Asked::Add { key: again, after: None, priority: same, merge: Merge::Earliest })] =
        &read[..]
    else {
        panic!("{asked:?} came back as {read:?}")
    };
    assert_eq!((again, same), (key, if is_json { priority } else { &0 }));
}

/// Returns true if two times are equal up to the precision of a double, as serde_json reads them,
/// and to the nanosecond.
fn is_about(one: Duration, other: Duration) -> bool {
    let apart = one.abs_diff(other).as_nanos();
    apart <= 1 + (one.as_nanos() >> 50)
}
