//! Numbers of bytes in flags.

use std::fmt;
use std::str::FromStr;

/// A number of bytes: 2000000, 2MB, 8GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl FromStr for Bytes {
    type Err = String;
    fn from_str(s: &str) -> Result<Bytes, String> {
        let digits = s.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(s.len());
        let unit = match s[digits..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1u64,
            "kb" | "k" => 1_000,
            "mb" | "m" => 1_000_000,
            "gb" | "g" => 1_000_000_000,
            "kib" => 1 << 10,
            "mib" => 1 << 20,
            "gib" => 1 << 30,
            _ => return Err("expected a number of bytes, such as 2000000, 2MB or 8GiB".into()),
        };
        let number: f64 =
            s[..digits].parse().map_err(|_| "expected a number of bytes, such as 2000000, 2MB or 8GiB".to_string())?;
        Ok(Bytes((number * unit as f64) as u64))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        match units.into_iter().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_sizes_parse_with_units() {
        let parse_bytes = |s: &str| s.parse::<Bytes>().map(|b| b.0).ok();
        assert_eq!(parse_bytes("2MB"), Some(2_000_000));
        assert_eq!(parse_bytes("1.5 GiB"), Some(3 << 29));
        assert_eq!(parse_bytes("12"), Some(12));
        assert_eq!(parse_bytes("MB"), None);
        assert_eq!(parse_bytes("2 miles"), None);
    }

    #[test]
    fn byte_sizes_print_as_they_are_parsed() {
        for (bytes, text) in [(4 << 30, "4GiB"), (3 << 20, "3MiB"), (1_000, "1000"), (0, "0")] {
            assert_eq!(Bytes(bytes).to_string(), text);
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)));
        }
    }
}
