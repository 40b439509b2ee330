//! Single values of Parquet columns as JSON: numbers, strings; dates and times in ISO 8601;
//! decimals as strings of digits; other bytes as base64.

use super::leaf::{Leaf, Values};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use half::f16;
use parquet::basic::{ConvertedType, LogicalType, TimeUnit};
use parquet::data_type::Int96;
use serde_json::Value;

const NANOS_PER_DAY: i128 = 86_400_000_000_000;

/// Julian day of 1 January 1970, for INT96.
const JULIAN_EPOCH: i128 = 2_440_588;

/// How the numbers of a column are read.
enum Meaning {
    Signed,
    Unsigned,
    /// Digits after the point.
    Decimal(i32),
    Date,
    /// Nanoseconds per unit.
    Time(i128),
    /// Nanoseconds per unit, and whether it is in UTC.
    Timestamp(i128, bool),
    Text,
    Float16,
    Uuid,
    Bytes,
}

fn meaning(leaf: &Leaf) -> Meaning {
    let nanos = |unit: &TimeUnit| match unit {
        TimeUnit::MILLIS => 1_000_000,
        TimeUnit::MICROS => 1_000,
        TimeUnit::NANOS => 1,
    };
    match leaf.descr.logical_type_ref() {
        Some(LogicalType::Decimal(decimal)) => return Meaning::Decimal(decimal.scale),
        Some(LogicalType::Date) => return Meaning::Date,
        Some(LogicalType::Time(time)) => return Meaning::Time(nanos(&time.unit)),
        Some(LogicalType::Timestamp(t)) => return Meaning::Timestamp(nanos(&t.unit), t.is_adjusted_to_u_t_c),
        Some(LogicalType::Integer(int)) if !int.is_signed => return Meaning::Unsigned,
        Some(LogicalType::String | LogicalType::Enum | LogicalType::Json) => return Meaning::Text,
        Some(LogicalType::Float16) => return Meaning::Float16,
        Some(LogicalType::Uuid) => return Meaning::Uuid,
        _ => {}
    }
    match leaf.descr.converted_type() {
        ConvertedType::DECIMAL => Meaning::Decimal(leaf.descr.type_scale()),
        ConvertedType::DATE => Meaning::Date,
        ConvertedType::TIME_MILLIS => Meaning::Time(1_000_000),
        ConvertedType::TIME_MICROS => Meaning::Time(1_000),
        ConvertedType::TIMESTAMP_MILLIS => Meaning::Timestamp(1_000_000, true),
        ConvertedType::TIMESTAMP_MICROS => Meaning::Timestamp(1_000, true),
        ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64 => {
            Meaning::Unsigned
        }
        ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON => Meaning::Text,
        _ => match &leaf.values {
            Values::Bytes(_) | Values::Fixed(_) => Meaning::Bytes,
            _ => Meaning::Signed,
        },
    }
}

/// Value `i` of a leaf as JSON.
pub(super) fn scalar(leaf: &Leaf, i: usize) -> Result<Value, String> {
    let missing = || format!("damaged: column `{}` has too few values", leaf.descr.path());
    macro_rules! value {
        ($values:ident) => {
            $values.get(i).ok_or_else(missing)?
        };
    }
    let of = meaning(leaf);
    Ok(match &leaf.values {
        Values::Bool(v) => Value::Bool(*value!(v)),
        Values::Int32(v) => match of {
            Meaning::Unsigned => (*value!(v)).cast_unsigned().into(),
            of => integer(i64::from(*value!(v)), &of),
        },
        Values::Int64(v) => match of {
            Meaning::Unsigned => (*value!(v)).cast_unsigned().into(),
            of => integer(*value!(v), &of),
        },
        Values::Int96(v) => Value::String(timestamp(int96_nanos(value!(v)), false)),
        // JSON has no infinities and no NaN; they become null.
        Values::Float(v) => shortest(*value!(v)),
        Values::Double(v) => (*value!(v)).into(),
        Values::Bytes(v) => bytes(value!(v).data(), &of, leaf)?,
        Values::Fixed(v) => bytes(value!(v).data(), &of, leaf)?,
    })
}

/// The fewest digits that give this f32: 0.1, not 0.10000000149011612.
fn shortest(n: f32) -> Value {
    n.to_string().parse().map_or(Value::Null, |n: f64| n.into())
}

fn integer(n: i64, of: &Meaning) -> Value {
    match of {
        Meaning::Decimal(scale) => Value::String(decimal(i128::from(n), *scale)),
        Meaning::Date => Value::String(date(i128::from(n))),
        Meaning::Time(nanos) => Value::String(time(i128::from(n) * nanos)),
        Meaning::Timestamp(nanos, is_utc) => Value::String(timestamp(i128::from(n) * nanos, *is_utc)),
        _ => n.into(),
    }
}

fn bytes(data: &[u8], of: &Meaning, leaf: &Leaf) -> Result<Value, String> {
    let name = || leaf.descr.path();
    Ok(match of {
        Meaning::Text => match std::str::from_utf8(data) {
            Ok(text) => Value::String(text.into()),
            Err(_) => return Err(format!("column `{}` is not UTF-8", name())),
        },
        Meaning::Decimal(scale) if data.len() <= 16 => {
            // Big-endian, in two's complement.
            let sign = if data.first().is_some_and(|b| *b >= 0x80) { -1 } else { 0 };
            let n = data.iter().fold(sign, |n: i128, b| (n << 8) | i128::from(*b));
            Value::String(decimal(n, *scale))
        }
        Meaning::Decimal(_) => {
            return Err(format!("column `{}` has decimals of more than 38 digits, which JSON output lacks", name()));
        }
        Meaning::Float16 if data.len() == 2 => shortest(f16::from_le_bytes([data[0], data[1]]).to_f32()),
        Meaning::Uuid if data.len() == 16 => {
            let hex = |part: &[u8]| part.iter().map(|b| format!("{b:02x}")).collect::<String>();
            let parts = [&data[..4], &data[4..6], &data[6..8], &data[8..10], &data[10..]];
            Value::String(parts.map(hex).join("-"))
        }
        _ => Value::String(STANDARD.encode(data)),
    })
}

/// `n` with `scale` digits after the point.
fn decimal(n: i128, scale: i32) -> String {
    let (sign, digits) = (if n < 0 { "-" } else { "" }, n.unsigned_abs().to_string());
    // The scale of a hostile file may be anything; the number has at most 39 digits.
    match usize::try_from(scale) {
        Ok(scale @ 1..=64) => {
            let digits = format!("{digits:0>width$}", width = scale + 1);
            let (whole, rest) = digits.split_at(digits.len() - scale);
            format!("{sign}{whole}.{rest}")
        }
        Ok(0) => format!("{sign}{digits}"),
        _ => format!("{sign}{digits}e{}", i64::from(scale).saturating_neg()),
    }
}

/// `days` after 1 January 1970 (Howard Hinnant's algorithm).
fn date(days: i128) -> String {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i128::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// A time of day, with as many digits as it needs.
fn time(nanos: i128) -> String {
    let (seconds, rest) = (nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000));
    let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let fraction = match rest {
        0 => String::new(),
        rest if rest % 1_000_000 == 0 => format!(".{:03}", rest / 1_000_000),
        rest if rest % 1_000 == 0 => format!(".{:06}", rest / 1_000),
        rest => format!(".{rest:09}"),
    };
    format!("{hours:02}:{minutes:02}:{seconds:02}{fraction}")
}

fn timestamp(nanos: i128, is_utc: bool) -> String {
    let (days, rest) = (nanos.div_euclid(NANOS_PER_DAY), nanos.rem_euclid(NANOS_PER_DAY));
    format!("{}T{}{}", date(days), time(rest), if is_utc { "Z" } else { "" })
}

/// Nanoseconds of the day, then the Julian day.
fn int96_nanos(n: &Int96) -> i128 {
    let [low, high, day] = [0, 1, 2].map(|i| i128::from(n.data()[i]));
    (day - JULIAN_EPOCH) * NANOS_PER_DAY + (high << 32 | low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_times_and_decimals_are_written_in_full() {
        assert_eq!((date(0), date(-1), date(19_782)), ("1970-01-01".into(), "1969-12-31".into(), "2024-02-29".into()));
        assert_eq!(timestamp(1_700_000_000_123_000_000, true), "2023-11-14T22:13:20.123Z");
        assert_eq!(timestamp(-1, false), "1969-12-31T23:59:59.999999999");
        assert_eq!((decimal(-12_345, 2), decimal(7, 3), decimal(7, 0)), ("-123.45".into(), "0.007".into(), "7".into()));
        assert_eq!((decimal(7, -2), decimal(7, i32::MIN)), ("7e2".into(), "7e2147483648".into()));
        assert_eq!((shortest(0.1).to_string(), shortest(f32::NAN)), ("0.1".into(), Value::Null));
        // The extremes of a hostile column.
        for n in [i128::from(i64::MAX), i128::from(i64::MIN)] {
            assert!(
                !date(n).is_empty() && !timestamp(n * 1_000_000, true).is_empty() && !time(n * 1_000_000).is_empty()
            );
        }
    }
}
