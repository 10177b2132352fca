//! The functions that the fuzz targets call. They wrap the parsers of the program, and return public types.

use std::ffi::{OsStr, OsString};
use std::io::BufReader;
use std::time::Duration;

use requeue::Merge;

use crate::args::codes::parse_codes;
use crate::args::halt::parse_halt;
use crate::args::values::parse_retries;
pub use crate::args::values::{
    parse_delimiter as delimiter, parse_jobs as jobs, parse_rate as rate,
};
pub use crate::duration::parse_duration as duration;
use crate::input::json::Written;
use crate::input::{Bad, Change, Format, Kind, Records};
pub use crate::key::shown;
use crate::process::template::{Tag, Template};
use crate::serve::parse_address;

/// The change that a record describes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    Add { key: Vec<u8>, after: Option<Duration>, merge: Merge, priority: i32 },
    Cancel { key: Vec<u8> },
}

/// Reads the records of `input` through a buffer of `buffer` bytes. Returns the change or the error message of each
/// record.
pub fn read(
    is_json: bool,
    delimiter: u8,
    max_record: usize,
    buffer: usize,
    input: &[u8],
) -> Vec<Result<Asked, String>> {
    let kind = if is_json { Kind::Json } else { Kind::Lines };
    let format = Format { kind, delimiter, max_record };
    let mut records = Records::new(BufReader::with_capacity(buffer, input), format);
    let mut all = Vec::new();
    // The input is in memory, so a read does not fail.
    while let Ok(Some(record)) = records.next_record() {
        let record = record.map(<[u8]>::to_vec);
        let number = records.number;
        let asked = record.and_then(|record| match format.parse_change(&record) {
            Ok(Change::Add(key, options)) => Ok(Asked::Add {
                key: key.to_vec(),
                after: options.after,
                merge: options.merge,
                priority: options.priority,
            }),
            Ok(Change::Cancel(key)) => Ok(Asked::Cancel { key: key.to_vec() }),
            Err(why) => Err(Bad { number, why }),
        });
        all.push(asked.map_err(|bad| bad.to_string()));
    }
    all
}

/// Formats a key as a JSON record that [`read`] parses.
pub fn written(key: &[u8], priority: i32) -> Vec<u8> {
    let mut written = Written::of_key(key);
    written.priority = priority;
    written.to_bytes()
}

/// Parses a number of retries. `None` means no limit.
pub fn retries(text: &str) -> Result<Option<u32>, &'static str> {
    parse_retries(text).map(|retries| retries.0)
}

/// Parses a list of exit codes. Returns the codes from 0 to `among` - 1 that the list contains.
pub fn codes(text: &str, among: i32) -> Result<Vec<i32>, &'static str> {
    let codes = parse_codes(text)?;
    Ok((0..among).filter(|&exit| codes.contain(exit)).collect())
}

/// Parses the value of `--halt`. Returns the `Debug` text of the value.
pub fn halt(text: &str) -> Result<String, &'static str> {
    parse_halt(text).map(|halt| format!("{:?}", halt.0))
}

/// Parses the address of the dashboard. Returns the `Debug` text of the address.
pub fn address(text: &str) -> Result<String, &'static str> {
    parse_address(text).map(|address| format!("{address:?}"))
}

/// Returns the program and its arguments, as they run for a key.
pub fn filled(
    command: Vec<OsString>,
    mark: Option<&OsStr>,
    key: &[u8],
) -> Result<Vec<OsString>, String> {
    let template = Template::from_words(command, mark).map_err(|refusal| refusal.message)?;
    Ok(std::iter::once(template.program_for(key)).chain(template.args_for(key)).collect())
}

/// Returns the text at the start of each line of a command's output.
pub fn tag(text: &OsStr, mark: Option<&OsStr>, key: &[u8]) -> Result<Vec<u8>, String> {
    Tag::from_text(text, mark).map(|tag| tag.text_for(key)).map_err(|refusal| refusal.message)
}
