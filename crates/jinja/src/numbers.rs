//! Python's parsing of numbers, classes of digits, and division.

use super::Fault;
use super::meter::Meter;
use super::print::is_space;
use super::value::Value;

/// The digit zero of every script that has decimal digits; 1 to 9 follow it.
const ZEROS: [u32; 66] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50, 0xed0,
    0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620,
    0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10, 0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0,
    0x112f0, 0x11450, 0x114d0, 0x11650, 0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60,
    0x16ac0, 0x16b50, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0,
];

fn decimal(c: char) -> Option<u32> {
    let before = ZEROS.partition_point(|zero| *zero <= c as u32).checked_sub(1)?;
    Some(c as u32 - ZEROS[before]).filter(|digit| *digit < 10)
}

/// Python's `isdecimal` of a character.
pub(super) fn is_decimal(c: char) -> bool {
    decimal(c).is_some()
}

/// Python's `isdigit` of a character, which includes superscript, subscript and circled digits.
pub(super) fn is_digit(c: char) -> bool {
    is_decimal(c)
        || matches!(c as u32, 0xb2 | 0xb3 | 0xb9 | 0x1369..=0x1371 | 0x19da | 0x2070 | 0x2074..=0x2079 | 0x2080..=0x2089
            | 0x2460..=0x2468 | 0x2474..=0x247c | 0x2488..=0x2490 | 0x24ea | 0x24f5..=0x24fd | 0x24ff | 0x2776..=0x277e
            | 0x2780..=0x2788 | 0x278a..=0x2792 | 0x10a40..=0x10a43 | 0x10e60..=0x10e68 | 0x11052..=0x1105a
            | 0x1f100..=0x1f10a)
}

/// Truncates a float to an integer.
pub(super) fn whole(n: f64) -> Result<i128, Fault> {
    // The lowest i128 is a power of two, which a float represents exactly.
    match n.abs() < -(i128::MIN as f64) {
        true => Ok(n as i128),
        false => Err(Fault::wrong(format!("{n:e} is too large a number"))),
    }
}

/// `int(value, base)`; `None` if that is not a number.
pub(super) fn to_int(meter: &Meter, value: &Value, base: i128) -> Result<Option<i128>, Fault> {
    value.defined()?;
    let float = match value {
        Value::Str(text) => {
            let text = normalize_digits(meter, text)?;
            match read_int(&text, base)? {
                None => read_float(&text).filter(|n| n.is_finite()),
                read => return Ok(read),
            }
        }
        Value::Float(n) => Some(*n).filter(|n| !n.is_nan()),
        other => return Ok(other.int()),
    };
    float.map(whole).transpose()
}

/// `float(value)`; `None` if that is not a number.
pub(super) fn to_float(meter: &Meter, value: &Value) -> Result<Option<f64>, Fault> {
    value.defined()?;
    match value {
        Value::Str(text) => Ok(read_float(&normalize_digits(meter, text)?)),
        other => Ok(other.number()),
    }
}

/// Trims whitespace and replaces the digits of all scripts by ASCII digits.
fn normalize_digits(meter: &Meter, text: &str) -> Result<String, Fault> {
    meter.bytes(text.len())?;
    let plain = |c: char| decimal(c).and_then(|digit| char::from_digit(digit, 10)).unwrap_or(c);
    Ok(text.trim_matches(is_space).chars().map(plain).collect())
}

fn read_int(text: &str, base: i128) -> Result<Option<i128>, Fault> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let alternate = match digits.get(..2) {
        Some("0x" | "0X") => 16,
        Some("0o" | "0O") => 8,
        Some("0b" | "0B") => 2,
        _ => 0,
    };
    let (digits, base) = match base {
        _ if alternate > 0 && (base == alternate || base == 0) => {
            (digits[2..].strip_prefix('_').unwrap_or(&digits[2..]), alternate)
        }
        0 => (digits, 10),
        _ => (digits, base),
    };
    let Some(base) = u32::try_from(base).ok().filter(|b| (2..=36).contains(b)) else { return Ok(None) };
    let digits = strip_underscores(digits, base).filter(|d| !d.is_empty() && d.chars().all(|c| c.is_digit(base)));
    let Some(digits) = digits else { return Ok(None) };
    let sign = if text.starts_with('-') { "-" } else { "" };
    match i128::from_str_radix(&format!("{sign}{digits}"), base) {
        Ok(n) => Ok(Some(n)),
        Err(_) => Err(Fault::wrong("a number is too large")),
    }
}

fn read_float(text: &str) -> Option<f64> {
    strip_underscores(text, 10)?.parse().ok()
}

/// Removes underscores, each of which must stand between digits.
fn strip_underscores(text: &str, base: u32) -> Option<String> {
    let digit = |c: Option<char>| c.is_some_and(|c| c.is_digit(base));
    let between = |at: usize| digit(text[..at].chars().next_back()) && digit(text[at + 1..].chars().next());
    text.match_indices('_').all(|(at, _)| between(at)).then(|| text.replace('_', ""))
}

/// `x // y` and `x % y` for y other than 0. The quotient is computed from the remainder, since `x /
/// y` may be rounded up.
pub(super) fn div_mod(x: f64, y: f64) -> (f64, f64) {
    let mut rest = x % y;
    let mut quotient = (x - rest) / y;
    if rest == 0.0 {
        rest = 0f64.copysign(y);
    } else if (rest < 0.0) != (y < 0.0) {
        rest += y;
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0f64.copysign(x / y), rest);
    }
    let floor = quotient.floor();
    (if quotient - floor > 0.5 { floor + 1.0 } else { floor }, rest)
}
