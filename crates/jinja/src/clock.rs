//! `strftime_now`: the date and time for templates.

use super::Fault;
use std::time::{SystemTime, UNIX_EPOCH};

/// A point in time and the offset of the time zone to print it in.
///
/// The standard library does not know the machine's time zone, so a caller who wants local dates
/// sets the offset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    /// Seconds since 1970 in UTC.
    pub unix: i64,
    /// Seconds east of UTC.
    pub offset: i32,
}

impl Clock {
    /// Now, in UTC.
    pub fn utc_now() -> Clock {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
        Clock { unix, offset: 0 }
    }
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar. It uses eras of
/// 400 years that begin in March, so that the leap day is the last day of its year.
fn civil(day: i64) -> (i64, usize, i64) {
    let shifted = day + 719_468; // days from 0000-03-01
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march + 2) / 5 + 1;
    let month = if march < 10 { march + 3 } else { march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month as usize, day)
}

pub(super) fn strftime(clock: Clock, pattern: &str) -> Result<String, Fault> {
    // Python supports years of up to four digits.
    let local = clock.unix.saturating_add(i64::from(clock.offset)).clamp(-62_135_596_800, 253_402_300_799);
    let (days, second) = (local.div_euclid(86_400), local.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let weekday = (days + 4).rem_euclid(7) as usize;
    let first = (1..).map(|back| days - back).find(|d| civil(*d).0 < year).unwrap_or(days - 1);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let half = if hour % 12 == 0 { 12 } else { hour % 12 };
    let mut out = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = chars.next();
        let bare = code == Some('-');
        if bare {
            code = chars.next();
        }
        let two = |n: i64| if bare { n.to_string() } else { format!("{n:02}") };
        let text = match code {
            Some('Y') => year.to_string(),
            Some('y') => two(year % 100),
            Some('m') => two(month as i64),
            Some('d') => two(day),
            Some('e') => format!("{day:2}"),
            Some('H') => two(hour),
            Some('I') => two(half),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('j') if bare => (days - first).to_string(),
            Some('j') => format!("{:03}", days - first),
            Some('p') => (if hour < 12 { "AM" } else { "PM" }).into(),
            Some('a') => DAYS[weekday][..3].into(),
            Some('A') => DAYS[weekday].into(),
            Some('b' | 'h') => MONTHS[month - 1][..3].into(),
            Some('B') => MONTHS[month - 1].into(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('R') => format!("{hour:02}:{minute:02}"),
            Some('D') => format!("{month:02}/{day:02}/{:02}", year % 100),
            Some('u') => (if weekday == 0 { 7 } else { weekday }).to_string(),
            Some('w') => weekday.to_string(),
            Some('s') => clock.unix.to_string(),
            Some('f') => "000000".into(),
            // Python prints nothing here for a time without a zone.
            Some('z' | 'Z') => String::new(),
            Some('%') => "%".into(),
            Some('n') => "\n".into(),
            Some('t') => "\t".into(),
            other => return Err(Fault::wrong(format!("strftime_now does not know %{}", other.unwrap_or(' ')))),
        };
        out += &text;
    }
    Ok(out)
}
