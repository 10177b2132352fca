//! Computes the times of schedules, from a cron expression with a time zone or from a period.
//!
//! The crate `cronexpr` finds dates, and this module maps the dates to instants with `jiff`. We tested each cron crate
//! with 26 cases, and none handles all of them. In Berlin, a schedule for 02:30 should run at 03:00 on the day on which
//! the clock skips 02:30 (the gap). It should run once on the day on which the clock shows 02:30 twice (the fold):
//!
//! | | `30 2` in the gap | `0,30 2` in the gap | `30 2` in the fold | a day without midnight (Cairo) | Apia's skipped day |
//! |---|---|---|---|---|---|
//! | `croner` 4.0 | 03:00 | never | once | 01:00 | fails |
//! | `cronexpr` 1.7 | never | never | twice | never | skipped |
//! | `jiff-cron` 0.3 | 03:30 | 03:00 | once | 01:00 | skipped |
//! | this module | 03:00 | 03:00 once | once | 01:00 | the next midnight |
//!
//! Therefore, this module uses a crate only for dates in UTC. `cronexpr` fits best, although its errors name the wrong
//! field: it depends only on `jiff`, and stops after four years if it finds no date. `croner` needs two families of
//! proc macros. `jiff-cron` requires a field for seconds, and its rule for the two fields for days differs from the
//! rule of all other crons.

use std::time::Duration;

use cronexpr::{Crontab, MakeTimestamp, parse_crontab};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use crate::types::text::prefix;

/// The maximum length, in bytes, of an expression, a period or the name of a time zone.
const MAX_TEXT: usize = 200;
/// The minimum period.
const MIN_PERIOD: Duration = Duration::from_millis(1);
/// The word before the period in the text of a schedule.
const EVERY: &str = "every ";
/// The expressions for which a name can be used.
const NAMES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// The times of a schedule.
#[derive(Clone, Debug)]
pub(crate) enum Calendar {
    Cron(Cron),
    Every(Duration),
}

impl Calendar {
    /// Parses the texts that an engine has stored. They are either an expression and its time zone, or `every` and a
    /// period without a time zone. The error is the reason why the texts are invalid.
    pub(crate) fn parse(spec: &str, zone: &str) -> Result<Self, String> {
        let Some(period) = spec.strip_prefix(EVERY) else {
            return Cron::parse(spec, zone).map(Self::Cron);
        };
        let shown = prefix(period, MAX_TEXT);
        let wrong = |why: String| format!("invalid period {shown:?}: {why}; use one such as 5m");
        let period: SignedDuration =
            period.trim().parse().map_err(|error: jiff::Error| wrong(error.to_string()))?;
        let period = Duration::try_from(period).map_err(|_| wrong("it is negative".to_owned()))?;
        if !zone.is_empty() {
            return Err(format!(
                "a period has no time zone, and the schedule has {:?}; omit it",
                prefix(zone, MAX_TEXT)
            ));
        }
        Self::every(period)
    }

    /// Returns the time zone of a schedule if the user names none.
    pub(crate) fn default_zone(spec: &str) -> &'static str {
        if spec.starts_with(EVERY) { "" } else { "UTC" }
    }

    pub(crate) fn every(period: Duration) -> Result<Self, String> {
        if period < MIN_PERIOD {
            return Err(format!("invalid period {period:?} of a schedule: use at least 1ms"));
        }
        Ok(Self::Every(period))
    }

    /// Returns the schedule as the texts that [`parse`](Self::parse) accepts.
    pub(crate) fn to_texts(&self) -> (String, String) {
        match self {
            Self::Cron(cron) => (cron.expression.clone(), cron.zone_name.clone()),
            Self::Every(period) => {
                let period = SignedDuration::try_from(*period).unwrap_or(SignedDuration::MAX);
                (format!("{EVERY}{period:#}"), String::new())
            }
        }
    }

    /// Returns the first time after `now`. `was` is an earlier time of the schedule, or the time at which the schedule
    /// began. Times are in microseconds since 1970.
    ///
    /// # Errors
    ///
    /// Returns the reason why the schedule has no further time.
    pub(crate) fn next_after(&self, was: i64, now: i64) -> Result<i64, String> {
        match self {
            Self::Every(period) => {
                let period = i64::try_from(period.as_micros()).unwrap_or(i64::MAX);
                // `was` may be later than `now` if the clock was set back.
                let periods = now.saturating_sub(was).div_euclid(period) + 1;
                Ok(was.saturating_add(periods.saturating_mul(period)))
            }
            Self::Cron(cron) => {
                let now = Timestamp::from_microsecond(now).map_err(|error| error.to_string())?;
                cron.next_after(now).map(Timestamp::as_microsecond)
            }
        }
    }
}

/// A cron expression with a time zone.
#[derive(Clone, Debug)]
pub(crate) struct Cron {
    expression: String,
    zone_name: String,
    zone: TimeZone,
    /// The expression. It is used as if in UTC, where each date is exactly one instant.
    dates: Crontab,
    /// True if the expression has a `*` for the hours. The expression then applies to each hour that passes, even to an
    /// hour that the clock shows twice. Otherwise, the expression means the times of day that the clock shows.
    is_hourly: bool,
}

impl Cron {
    pub(crate) fn parse(expression: &str, zone_name: &str) -> Result<Self, String> {
        let shown = prefix(expression, MAX_TEXT);
        let wrong = |why: &str| format!("invalid cron expression {shown:?}: {why}");
        if expression.len() > MAX_TEXT {
            return Err(wrong(&format!(
                "it has {} bytes; at most {MAX_TEXT} are allowed",
                expression.len()
            )));
        }
        let named = NAMES.iter().find(|(name, _)| expression.eq_ignore_ascii_case(name));
        let full = named.map_or(expression, |&(_, full)| full);
        let fields: Vec<_> = full.split_whitespace().collect();
        if fields.len() != 5 {
            return Err(wrong(&format!(
                "it has {} fields, and needs 5: minute, hour, day of the month, month, day of the week; \
                 use one such as 0 9 * * MON-FRI",
                fields.len()
            )));
        }
        let parsed = parse_crontab(&format!("{} UTC", fields.join(" ")));
        let dates = parsed.map_err(|error| {
            // The lines before the last one repeat the expression, and mark a place in it.
            let said = error.to_string();
            let why = said.lines().last().unwrap_or_default().trim_start_matches([' ', '^']);
            wrong(&format!("{why}; use one such as 0 9 * * MON-FRI"))
        })?;
        let zone = find_zone(zone_name)?;
        let is_hourly = matches!(fields[1], "*" | "*/1");
        let (expression, zone_name) = (expression.to_owned(), zone_name.to_owned());
        let cron = Self { expression, zone_name, zone, dates, is_hourly };
        // The four years after this date contain each date of the Gregorian calendar, including 29 February.
        let any = DateTime::constant(2024, 1, 1, 0, 0, 0, 0);
        cron.next_date(any).map_err(|_| {
            wrong("it has no date within four years; correct the day and the month")
        })?;
        Ok(cron)
    }

    /// Returns the first instant of the schedule after `now`.
    fn next_after(&self, now: Timestamp) -> Result<Timestamp, String> {
        if self.is_hourly { self.next_passing(now) } else { self.next_shown(now) }
    }

    /// Returns the first instant after `now` at which the clock shows a date of the expression for the first time. If
    /// the clock skips the date, the instant is the end of the skipped period.
    fn next_shown(&self, now: Timestamp) -> Result<Timestamp, String> {
        let mut date = self.zone.to_datetime(now);
        loop {
            date = self.next_date(date)?;
            let at = match self.zone.to_ambiguous_timestamp(date).offset() {
                AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(date),
                AmbiguousOffset::Fold { before, .. } => before.to_timestamp(date),
                // The offset after the change maps the skipped date to an instant before the change.
                AmbiguousOffset::Gap { after, .. } => {
                    after.to_timestamp(date).map(|early| self.next_change(early).unwrap_or(early))
                }
            };
            // If the clock shows this hour for the second time, the instant of the date is in the past.
            let at = at.map_err(|error| error.to_string())?;
            if at > now {
                return Ok(at);
            }
        }
    }

    /// Returns the first instant after `now` at which the clock shows a date of the expression. The clock may show the
    /// same date twice.
    fn next_passing(&self, now: Timestamp) -> Result<Timestamp, String> {
        let failed = |error: jiff::Error| error.to_string();
        let (mut from, mut date) = (now, self.zone.to_datetime(now));
        loop {
            // Until the next change of the offset, all dates have the same offset.
            let offset = self.zone.to_offset(from);
            let at = offset.to_timestamp(self.next_date(date)?).map_err(failed)?;
            match self.next_change(from) {
                Some(change) if change <= at => {
                    from = change;
                    // The search begins just before the change, so that it includes the first date with the new offset.
                    let first = self.zone.to_datetime(change);
                    date = first.checked_sub(SignedDuration::from_nanos(1)).map_err(failed)?;
                }
                _ => return Ok(at),
            }
        }
    }

    fn next_change(&self, from: Timestamp) -> Option<Timestamp> {
        self.zone.following(from).next().map(|change| change.timestamp())
    }

    /// Returns the first date of the expression after `date`.
    fn next_date(&self, date: DateTime) -> Result<DateTime, String> {
        let utc = Offset::UTC.to_timestamp(date).map_err(|error| error.to_string())?;
        let found = self.dates.find_next(MakeTimestamp(utc));
        found.map(|found| found.datetime()).map_err(|error| error.to_string())
    }
}

fn find_zone(name: &str) -> Result<TimeZone, String> {
    let unknown = || {
        let shown = prefix(name, MAX_TEXT);
        format!(
            "unknown time zone {shown:?}: use a name of the IANA database, such as Europe/Berlin or UTC"
        )
    };
    let zone = TimeZone::get(name).map_err(|_| unknown())?;
    if zone.is_unknown() { Err(unknown()) } else { Ok(zone) }
}

#[cfg(test)]
mod tests;
