//! Tests the calendar with tables of known instants. Also compares random expressions with a search minute by minute.

use jiff::ToSpan;
use jiff::civil::Weekday;
use proptest::collection::btree_set;
use proptest::option::of;
use proptest::prelude::*;

use super::*;

fn cron(expression: &str, zone: &str) -> Cron {
    Cron::parse(expression, zone).expect(expression)
}

/// Returns the first times after `after`. Each time is written as the clock of the zone shows it, with its offset.
fn times(expression: &str, zone: &str, after: &str, count: usize) -> String {
    let cron = cron(expression, zone);
    let mut at: Timestamp = after.parse().expect(after);
    let shown = std::iter::repeat_with(|| {
        at = cron.next_after(at).expect("a time");
        cron.zone.to_offset(at).to_datetime(at).strftime("%d.%H:%M").to_string()
            + &cron.zone.to_offset(at).to_string()
    });
    shown.take(count).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_change_of_daylight_saving_time_neither_skips_nor_doubles_a_time() {
    const BERLIN: &str = "Europe/Berlin";
    // On 2026-03-29, the time from 02:00 to 03:00 does not exist. On 2026-10-25, the clock shows it twice.
    let (spring, autumn) = ("2026-03-28T12:00:00Z", "2026-10-24T12:00:00Z");
    for (expression, zone, after, expected) in [
        ("30 2 * * *", BERLIN, spring, "29.03:00+02 30.02:30+02"),
        ("0,30 2 * * *", BERLIN, spring, "29.03:00+02 30.02:00+02 30.02:30+02"),
        ("0 2,3 * * *", BERLIN, spring, "29.03:00+02 30.02:00+02"),
        ("30 2 29 3 *", BERLIN, "2026-03-28T12:00:00Z", "29.03:00+02 29.02:30+02"),
        ("30 2 * * *", BERLIN, "2026-03-29T00:59:59Z", "29.03:00+02"),
        ("30 2 * * *", BERLIN, "2026-03-29T01:00:00Z", "30.02:30+02"),
        ("30 2 * * *", BERLIN, autumn, "25.02:30+02 26.02:30+01"),
        ("30 2 * * *", BERLIN, "2026-10-25T00:30:00Z", "26.02:30+01"),
        ("45 2 * * *", BERLIN, "2026-10-25T01:15:00Z", "26.02:45+01"),
        ("0 1-3 * * *", BERLIN, autumn, "25.01:00+02 25.02:00+02 25.03:00+01"),
        ("0 */2 * * *", BERLIN, "2026-10-24T21:30:00Z", "25.00:00+02 25.02:00+02 25.04:00+01"),
        // The schedule runs in each hour that passes.
        ("0 * * * *", BERLIN, "2026-10-24T23:30:00Z", "25.02:00+02 25.02:00+01 25.03:00+01"),
        ("30 * * * *", BERLIN, "2026-03-29T00:00:00Z", "29.01:30+01 29.03:30+02"),
        ("*/30 * * * *", BERLIN, "2026-03-29T00:00:00Z", "29.01:30+01 29.03:00+02"),
        // On this day, the hour after midnight does not exist.
        ("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00:00Z", "24.01:00+03 25.00:00+03"),
        ("30 0 * * *", "Asia/Beirut", "2026-03-28T12:00:00Z", "29.01:00+03 30.00:30+03"),
        // The clock changes by half an hour.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", "04.02:30+11 05.02:15+11"),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z", "05.01:45+11 06.01:45+10:30"),
        // In Apia, a whole day does not exist.
        (
            "0 12 * * *",
            "Pacific/Apia",
            "2011-12-29T12:00:00Z",
            "29.12:00-10 31.00:00+14 31.12:00+14",
        ),
        ("0 9 * * MON-FRI", BERLIN, "2026-11-20T12:00:00Z", "23.09:00+01 24.09:00+01"),
        ("0 0 29 2 *", "UTC", "2026-11-20T12:00:00Z", "29.00:00+00 29.00:00+00"),
        ("@daily", BERLIN, spring, "29.00:00+01 30.00:00+02"),
        ("@Hourly", "UTC", "2026-11-20T12:00:00Z", "20.13:00+00"),
        ("0 0 * * 7", "UTC", "2026-11-20T12:00:00Z", "22.00:00+00"),
    ] {
        let count = expected.split(' ').count();
        assert_eq!(times(expression, zone, after, count), expected, "{expression} {zone} {after}");
    }
}

#[test]
fn an_invalid_schedule_is_named_with_the_next_step() {
    for (spec, zone, why) in [
        (
            "a b c d e",
            "UTC",
            r#"invalid cron expression "a b c d e": malformed expression; use one such as"#,
        ),
        ("60 * * * *", "UTC", r#""60 * * * *": value must be in range 0..=59; found 60; use one"#),
        ("* * * *", "UTC", r#""* * * *": it has 4 fields, and needs 5: minute, hour"#),
        ("", "UTC", r#"invalid cron expression "": it has 0 fields"#),
        ("0 0 30 2 *", "UTC", r#""0 0 30 2 *": it has no date within four years; correct the day"#),
        ("0 0 31 4,6 *", "UTC", "it has no date within four years"),
        ("0 9 * * * Europe/Berlin", "UTC", "it has 6 fields"),
        (
            "0 9 * * *",
            "Europe/Berln",
            r#"unknown time zone "Europe/Berln": use a name of the IANA"#,
        ),
        ("0 9 * * *", "", r#"unknown time zone """#),
        ("0 9 * * *", "Etc/Unknown", r#"unknown time zone "Etc/Unknown""#),
        ("every 0s", "", "invalid period 0ns of a schedule: use at least 1ms"),
        ("every -5m", "", r#"invalid period "-5m": it is negative; use one such as 5m"#),
        ("every soon", "", r#"invalid period "soon""#),
        ("every 5m", "UTC", r#"a period has no time zone, and the schedule has "UTC""#),
    ] {
        let error = Calendar::parse(spec, zone).expect_err(spec);
        assert!(error.contains(why), "{error}");
    }
    let error = Calendar::parse(&"*".repeat(10_000), "UTC").expect_err("too long");
    assert!(error.contains("it has 10000 bytes; at most 200") && error.len() < 300, "{error}");
}

#[test]
fn texts_can_be_parsed_again() {
    for (spec, zone) in
        [("0 9 * * MON-FRI", "Europe/Berlin"), ("@daily", "UTC"), ("every 1h 30m", "")]
    {
        let (again, its_zone) = Calendar::parse(spec, zone).expect(spec).to_texts();
        assert_eq!((&*again, &*its_zone), (spec, zone));
    }
}

#[test]
fn a_period_is_counted_from_the_begin() {
    let every = Calendar::every(Duration::from_micros(1500)).expect("a period");
    for (was, now, next) in
        [(0, 0, 1500), (0, 1499, 1500), (0, 1500, 3000), (700, 9_999, 11_200), (9_000, 100, 1500)]
    {
        assert_eq!(every.next_after(was, now), Ok(next), "{was} {now}");
    }
    let longest = Calendar::every(Duration::MAX).expect("a period");
    assert_eq!(longest.next_after(5, 6), Ok(i64::MAX));
}

/// The values of a cron expression. `None` stands for a `*`.
#[derive(Debug)]
struct Fields {
    minutes: Vec<i8>,
    hours: Option<Vec<i8>>,
    days: Option<Vec<i8>>,
    weekdays: Option<Vec<i8>>,
}

impl Fields {
    fn expression(&self) -> String {
        let list = |values: &[i8]| values.iter().map(i8::to_string).collect::<Vec<_>>().join(",");
        let field = |values: &Option<Vec<i8>>| values.as_deref().map_or("*".to_owned(), list);
        let (minutes, hours) = (list(&self.minutes), field(&self.hours));
        format!("{minutes} {hours} {} * {}", field(&self.days), field(&self.weekdays))
    }

    fn matches(&self, date: DateTime) -> bool {
        let is_day = self.days.as_ref().map(|days| days.contains(&date.day()));
        let weekday = Weekday::to_sunday_zero_offset(date.weekday());
        let is_weekday = self.weekdays.as_ref().map(|days| days.contains(&weekday));
        let is_date = match (is_day, is_weekday) {
            (Some(day), Some(weekday)) => day || weekday,
            (is_day, is_weekday) => is_day.unwrap_or(true) && is_weekday.unwrap_or(true),
        };
        let is_hour = self.hours.as_ref().is_none_or(|hours| hours.contains(&date.hour()));
        self.minutes.contains(&date.minute()) && is_hour && is_date
    }

    /// Returns the times of the schedule among these minutes. The instant of a time of day is the minute in which the
    /// clock first shows or passes it.
    fn times(&self, zone: &TimeZone, minutes: impl Iterator<Item = Timestamp>) -> Vec<Timestamp> {
        let mut latest: Option<DateTime> = None;
        let mut found = Vec::new();
        for at in minutes {
            let date = zone.to_datetime(at);
            let before = latest.unwrap_or(date - 1.minute());
            let mut passed =
                std::iter::successors(Some(before + 1.minute()), |date| Some(*date + 1.minute()))
                    .take_while(|passed| *passed <= date);
            let is_due = match self.hours {
                Some(_) => passed.any(|passed| self.matches(passed)),
                None => self.matches(date),
            };
            latest = Some(before.max(date));
            if is_due {
                found.push(at);
            }
        }
        found
    }
}

fn fields() -> impl Strategy<Value = Fields> {
    let list =
        |values| btree_set(values, 1..4).prop_map(|values| values.into_iter().collect::<Vec<i8>>());
    let (minutes, hours) = (list(0..60i8), of(list(0..5i8)));
    let (days, weekdays) = (of(list(1..32i8)), of(list(0..7i8)));
    (minutes, hours, days, weekdays).prop_map(|(minutes, hours, days, weekdays)| Fields {
        minutes,
        hours,
        days,
        weekdays,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn the_times_are_those_of_a_search_minute_by_minute(
        fields in fields(),
        zone in prop::sample::select(&[
            "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Beirut",
            "America/Santiago", "Pacific/Apia", "UTC",
        ][..]),
        year in 2010..2036i16,
        change in 0..4usize,
        before in 1..2880i64,
    ) {
        let zone_name = zone;
        let zone = TimeZone::get(zone_name).expect("a zone");
        let new_year = DateTime::constant(year, 1, 1, 0, 0, 0, 0);
        let new_year = zone.to_timestamp(new_year).expect("an instant");
        let change = zone.following(new_year).nth(change).map_or(new_year, |change| change.timestamp());
        // A file of a zone may have an entry at the last second that 32 bits can represent. At this second, nothing
        // changes.
        let change = change.round(jiff::Unit::Minute).expect("a minute");
        let begin = change - SignedDuration::from_mins(before);
        let minutes = (1..=6 * 1440i64).map(|n| begin + SignedDuration::from_mins(n));
        let end = minutes.clone().next_back().expect("a minute");
        let cron = cron(&fields.expression(), zone_name);
        let found = std::iter::successors(cron.next_after(begin).ok(), |at| cron.next_after(*at).ok());
        let found: Vec<_> = found.take_while(|at| *at <= end).collect();
        // The search begins two hours earlier. Therefore, it knows the times that the clock has already shown in an
        // hour that it shows twice.
        let early = (-120..=0).map(|n| begin + SignedDuration::from_mins(n));
        let mut expected = fields.times(&zone, early.chain(minutes));
        expected.retain(|at| *at > begin);
        prop_assert_eq!(found, expected, "{} {}", fields.expression(), zone_name);
    }
}
