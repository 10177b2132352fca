//! Fuzzes the rows of stores, which other programs may have written.

use requeue_store::fuzz_api::{self, Fields, Operation, Row};

/// The position of each value in a row of a table.
const STATE: usize = 0;
const AT: usize = 1;
const PRIORITY: usize = 2;
/// The positions of all counts, and then of all times.
const COUNTS: [usize; 4] = [3, 4, 5, 6];
const TIMES: [usize; 3] = [7, 8, 9];
const FAILURES: usize = 5;
const BOUND: usize = 10;
const FAILED_AT: usize = 11;
const EPOCH: usize = 12;
const RUN: std::ops::Range<usize> = 13..18;
const RUN_TIMES: [usize; 2] = [13, 14];
const RUN_PRIORITY: usize = 15;
const RUN_COUNTS: [usize; 2] = [16, 17];
const CANCEL_EPOCH: usize = 18;
/// The position of the worker's name in a packed row, after its length.
const NAME: usize = 59;

/// The first byte selects the format of the other bytes: a row of a table, or a packed row as in
/// Redis.
///
/// Oracle: a second list of rules decides whether a row is valid. The constraints of the tables refuse all invalid
/// rows. A valid row does not change when it is written and read again. Each operation turns a valid row into a valid
/// row.
pub fn rows(data: &[u8]) {
    let Some((&kind, data)) = data.split_first() else { return };
    let mut input = Input(data);
    let row = if kind & 1 == 0 {
        let fields: Fields = std::array::from_fn(|_| input.value());
        let error = (input.byte() & 1 == 0).then(|| "no".to_owned());
        let mut text = || input.name().and_then(|name| String::from_utf8(name).ok());
        let (worker, group, trace, run_trace) = (text(), text(), text(), text());
        let named = worker.clone().unwrap_or_default();
        if !is_readable(&fields) || !is_name(named.as_bytes()) {
            // The constraints of the tables refuse the row.
            return;
        }
        let texts = [&error, &group, &trace, &worker, &run_trace].map(Option::clone);
        let past =
            (input.byte() & 1 == 0).then(|| input.0.iter().take(64).copied().collect::<Vec<_>>());
        let row = fuzz_api::table_row(fields, texts, past.clone());
        let mut kept = fields;
        let (mut worker, mut run_trace) = (worker.filter(|name| !name.is_empty()), run_trace);
        if kept[STATE] != Some(1) {
            // Without a run, the values of a run are null.
            kept[RUN].fill(None);
            (worker, run_trace) = (None, None);
        }
        if kept[STATE] != Some(1) || kept[CANCEL_EPOCH] != kept[EPOCH] {
            // A cancellation without a run, or with another epoch, belongs to an earlier delivery.
            kept[CANCEL_EPOCH] = None;
        }
        if kept[AT].is_none() {
            kept[BOUND] = None;
        }
        if kept[FAILURES] == Some(0) {
            kept[FAILED_AT] = None;
        }
        assert_eq!(
            row.fields(),
            (kept, [error, group, trace, worker, run_trace], past),
            "{fields:?}"
        );
        row
    } else {
        let size = [25, 59, 92, 100, 107, input.byte().into()][usize::from(input.byte() % 6)];
        let mut packed: Vec<u8> = std::iter::repeat_with(|| input.byte()).take(size).collect();
        if kind & 2 == 0 {
            // Times are set to whole numbers, because hardly any arbitrary bytes are valid times.
            for at in [0, 8, 25, 33, 41, 67, 75, 84, 92] {
                let time = input.value().unwrap_or(0) as f64;
                if let Some(bytes) = packed.get_mut(at..at + 8) {
                    bytes.copy_from_slice(&time.to_be_bytes());
                }
            }
            for at in [24, 57, 83] {
                let byte = [0, 1, 255, 2, 4, 6][usize::from(input.byte() % 6)];
                packed.get_mut(at..=at).into_iter().for_each(|bytes| bytes[0] = byte);
            }
            if packed.len() > NAME {
                let name = input.name().unwrap_or_default();
                packed[NAME - 1] = u8::try_from(name.len()).unwrap_or(u8::MAX);
                packed.splice(NAME..NAME, name);
            }
        }
        let read = fuzz_api::packed_row(&packed);
        assert_eq!(
            read.is_ok(),
            is_readable_packed(&packed),
            "{}: {read:?}",
            packed.escape_ascii()
        );
        let Ok(row) = read else { return said(&read) };
        row
    };
    run(row, &mut input);
}

fn said(read: &Result<Row, String>) {
    assert!(read.as_ref().err().is_some_and(|said| !said.is_empty()));
}

fn run(mut row: Row, input: &mut Input<'_>) {
    for _ in 0..8 {
        if input.0.is_empty() {
            return;
        }
        let now = input.value().unwrap_or(0).max(0);
        assert!(row.explain(now).starts_with("key: "));
        let holds = input.byte() & 1 == 0;
        let number = input.value().unwrap_or(0).unsigned_abs();
        let operation = match input.byte() % 13 {
            0 => Operation::Add { after: number, exactly: holds },
            1 => Operation::Claim { lease: number },
            2 => Operation::Succeed,
            3 => Operation::RequeueAfter { delay: number },
            4 => Operation::Retry { base: number, cap: input.value().unwrap_or(0).unsigned_abs() },
            5 => Operation::RetryAfter { delay: number },
            6 => Operation::GiveUp,
            7 => Operation::Release,
            8 => Operation::Unclaim { queued: number },
            9 => Operation::Expire,
            10 => Operation::Cancel,
            11 => {
                let at_most = input.value().unwrap_or(0).unsigned_abs();
                Operation::Debounce { quiet: number, at_most }
            }
            _ => Operation::Revive,
        };
        let before = row.clone();
        let Some(after) = row.after(operation, holds, now) else { return };
        let (fields, texts, past) = after.fields();
        assert!(is_readable(&fields), "{operation:?} at {now} of {before:?}: {fields:?}");
        let read = fuzz_api::table_row(fields, texts, past);
        assert_eq!(read, after, "{operation:?} at {now} of {before:?}");
        row = after;
    }
}

fn is_readable(fields: &Fields) -> bool {
    let is_time = |at: &usize| fields[*at].is_some_and(|time| time >= 0);
    let is_count = |at: &usize| fields[*at].is_some_and(|count| (0..1 << 32).contains(&count));
    let is_priority = |at: usize| fields[at].is_some_and(|number| (-1..=1).contains(&number));
    let at_is_right = match fields[AT] {
        Some(at) => at >= 0 && fields[STATE] != Some(2),
        None => fields[STATE] != Some(0),
    };
    let run_is_right = match fields[STATE] {
        Some(1) => {
            fields[EPOCH].is_some_and(|epoch| epoch > 0)
                && RUN_TIMES.iter().all(is_time)
                && RUN_COUNTS.iter().all(is_count)
                && is_priority(RUN_PRIORITY)
        }
        Some(0 | 2) => fields[EPOCH].is_none(),
        _ => false,
    };
    at_is_right
        && run_is_right
        && fields[BOUND].is_none_or(|bound| bound >= 0)
        && fields[FAILED_AT].is_none_or(|at| at >= 0)
        && fields[CANCEL_EPOCH].is_none_or(|epoch| epoch > 0)
        && TIMES.iter().all(is_time)
        && COUNTS.iter().all(is_count)
        && is_priority(PRIORITY)
}

fn is_readable_packed(packed: &[u8]) -> bool {
    let time = |at: usize| {
        let bytes = packed.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        f64::from_be_bytes(bytes.unwrap_or_default())
    };
    let is_time = |at: usize| {
        let time = time(at);
        (0.0..9_007_199_254_740_992.0).contains(&time) && time.trunc() == time
    };
    let is_one_of =
        |at: usize, values: &[u8]| packed.get(at).is_none_or(|byte| values.contains(byte));
    let is_pending = packed.len() == 25;
    let length = packed.get(NAME - 1).map_or(0, |length| usize::from(*length));
    // The start of the part for failures and the bound.
    let extra = NAME + length;
    let has_extra = packed.len() > extra;
    let has_worker = !is_pending && time(25) > 0.0;
    let flag = packed.get(extra + 24).copied().unwrap_or(0);
    let is_parked = has_extra && flag % 2 == 1;
    let failed_at = (flag & 2 > 0).then_some(extra + 33);
    let mut least = if failed_at.is_some() { extra + 41 } else { extra + 33 };
    // The trace contexts and the past follow their lengths.
    for _ in 0..if flag & 4 > 0 { 3 } else { 0 } {
        let length = packed.get(least..least + 2).and_then(|bytes| bytes.try_into().ok());
        least += 2 + usize::from(u16::from_be_bytes(length.unwrap_or([u8::MAX; 2])));
    }
    let name = packed.get(NAME..extra).unwrap_or_default();
    (is_pending || packed.len() == extra || packed.len() >= least)
        && [0, 8].into_iter().all(is_time)
        && (is_pending || [25, 33, 41].into_iter().all(is_time))
        && (!has_extra || [extra + 8, extra + 16, extra + 25].into_iter().all(is_time))
        && (!has_extra || failed_at.is_none_or(is_time))
        && is_one_of(24, &[0, 1, 255])
        && is_one_of(57, &[0, 1, 255])
        && is_name(name)
        && (has_worker || name.is_empty())
        && (!has_extra || flag <= 7)
        && is_parked != (time(0) > 0.0 || has_worker)
}

fn is_name(name: &[u8]) -> bool {
    let text = std::str::from_utf8(name);
    name.len() <= 100 && text.is_ok_and(|text| !text.chars().any(char::is_control))
}

/// The remaining bytes of the input. After the last byte, the input yields zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    /// Returns the name of a worker: null, empty, valid, with an invalid character, too long, or
    /// arbitrary bytes.
    fn name(&mut self) -> Option<Vec<u8>> {
        Some(match self.byte() % 8 {
            0 => return None,
            1 => Vec::new(),
            2 | 3 => "größe:7".into(),
            4 => vec![b'a'; 99 + usize::from(self.byte() % 3)],
            5 => {
                let code = u32::from_be_bytes([0, self.byte() % 17, self.byte(), self.byte()]);
                char::from_u32(code).unwrap_or('\u{9f}').to_string().into()
            }
            6 => vec![self.byte()],
            _ => {
                let length = self.byte();
                (0..length).map(|_| self.byte()).collect()
            }
        })
    }

    /// Returns null, a small number, a number near the limit of a type, or any number.
    fn value(&mut self) -> Option<i64> {
        match self.byte() {
            0 => None,
            kind @ 1..=200 => Some(i64::from(kind % 6) - 1),
            kind @ 201..=220 => Some((1 << (kind - 158)) - 1 + i64::from(kind % 3)),
            221..=230 => Some((1 << 32) - 1 + i64::from(self.byte() % 3)),
            231..=235 => Some(i64::MAX),
            236..=237 => Some(i64::MIN),
            _ => Some(i64::from_be_bytes(std::array::from_fn(|_| self.byte()))),
        }
    }
}
