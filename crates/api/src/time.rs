//! Timestamps in RFC 3339, and durations in seconds.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time-out in seconds, as flags and JSON have it; 0 is none. Never negative, infinite or NaN.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Seconds(f64);

impl Eq for Seconds {}

impl Seconds {
    /// The duration; `None` if it is 0.
    pub fn timeout(self) -> Option<Duration> {
        // The constructor has checked the range.
        Duration::try_from_secs_f64(self.0).ok().filter(|timeout| !timeout.is_zero())
    }
}

impl TryFrom<f64> for Seconds {
    type Error = String;
    fn try_from(seconds: f64) -> Result<Seconds, String> {
        match Duration::try_from_secs_f64(seconds) {
            Ok(_) => Ok(Seconds(seconds)),
            Err(_) => Err(format!("{seconds} is not a number of seconds; use 0 or more, such as 30 or 1.5")),
        }
    }
}

impl From<Seconds> for f64 {
    fn from(seconds: Seconds) -> f64 {
        seconds.0
    }
}

impl FromStr for Seconds {
    type Err = String;
    fn from_str(text: &str) -> Result<Seconds, String> {
        let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds, such as 30 or 1.5".to_string())?;
        Seconds::try_from(seconds)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// RFC 3339 in UTC, to the millisecond: `2025-03-01T12:00:00.000Z`. A clock before 1970 reads as
/// 1970.
pub fn rfc3339(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, millis) = (since.as_secs(), since.subsec_millis());
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The date of a day counted from 1 January 1970. The computation uses years that begin in March,
/// so that a leap day is the last day of its year; the calendar repeats every 400 years.
fn civil(days: u64) -> (u64, u64, u64) {
    let day = days + 719_468; // from 1 March of the year 0
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // from March
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, turn) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + turn, month, date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_finite_and_not_negative() {
        let read = |text: &str| text.parse::<Seconds>().map(|s| (s.timeout(), s.to_string()));
        assert_eq!(read("1.5").unwrap(), (Some(Duration::from_millis(1500)), "1.5".into()));
        assert_eq!(read("0").unwrap(), (None, "0".into()));
        for wrong in ["-1", "inf", "NaN", "1e300", "soon", ""] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(serde_json::from_str::<Seconds>("-1").is_err());
        assert_eq!(serde_json::to_string(&"30".parse::<Seconds>().unwrap()).unwrap(), "30.0");
    }

    #[test]
    fn rfc3339_dates_match_the_calendar() {
        let at = |seconds: u64| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59.000Z");
        assert_eq!(at(1_709_251_200), "2024-03-01T00:00:00.000Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59.000Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000Z");
        assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(1_735_689_599_987)), "2024-12-31T23:59:59.987Z");
    }
}
