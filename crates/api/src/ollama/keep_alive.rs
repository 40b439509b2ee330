//! How long a model stays loaded after a request.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// How long a model stays loaded after its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "KeepAliveSchema")]
pub enum KeepAlive {
    /// So long; 0 unloads it when the request ends.
    For(Duration),
    /// Until it is unloaded by another request.
    Forever,
}

/// OpenAPI schema of [`KeepAlive`].
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = KeepAlive)]
#[serde(untagged, expecting = "a number of seconds, or a duration such as \"5m\"")]
pub enum KeepAliveSchema {
    /// Seconds; negative: forever.
    Seconds(f64),
    /// A duration with units: `90s`, `1h30m`; negative: forever.
    Text(String),
}

impl KeepAlive {
    /// Seconds, of which a negative number and one beyond the range of a duration mean forever.
    fn of_seconds(seconds: f64) -> KeepAlive {
        match Duration::try_from_secs_f64(seconds) {
            Ok(duration) => KeepAlive::For(duration),
            Err(_) => KeepAlive::Forever,
        }
    }
}

impl TryFrom<KeepAliveSchema> for KeepAlive {
    type Error = String;

    fn try_from(given: KeepAliveSchema) -> Result<KeepAlive, String> {
        match given {
            KeepAliveSchema::Seconds(seconds) => Ok(KeepAlive::of_seconds(seconds)),
            KeepAliveSchema::Text(text) => seconds(&text).map(KeepAlive::of_seconds).ok_or_else(|| {
                format!(
                    "`keep_alive` is \"{text}\"; it must be seconds, or a duration such as \"90s\", \"5m\" or \"1h30m\""
                )
            }),
        }
    }
}

/// The seconds of a duration as Go writes it: numbers with units, and a sign. A number without a unit
/// is taken as seconds.
fn seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest.is_empty() {
        return None;
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let factor = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" | "" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * factor;
        rest = after;
    }
    Some(sign * total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<KeepAlive, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    #[test]
    fn keep_alive_is_seconds_or_a_duration() {
        let of = |seconds: f64| Ok(KeepAlive::For(Duration::from_secs_f64(seconds)));
        for (json, want) in [
            ("0", of(0.0)),
            ("300", of(300.0)),
            ("1.5", of(1.5)),
            ("-1", Ok(KeepAlive::Forever)),
            ("1e300", Ok(KeepAlive::Forever)),
            (r#""0""#, of(0.0)),
            (r#""5m""#, of(300.0)),
            (r#""1h30m""#, of(5400.0)),
            (r#""1.5h""#, of(5400.0)),
            (r#""250ms""#, of(0.25)),
            (r#""90""#, of(90.0)),
            (r#""-1s""#, Ok(KeepAlive::Forever)),
        ] {
            assert_eq!(read(json), want, "{json}");
        }
        for json in [r#""""#, r#""-""#, r#""soon""#, r#""5 days""#, r#""1..2s""#, r#""m""#] {
            assert!(read(json).is_err(), "{json}");
        }
        assert!(read("true").unwrap_err().contains("a duration such as"));
    }
}
