//! Python's splitting, replacing and capitalizing of strings.

use super::Fault;
use super::meter::{Meter, TextBuilder};
use super::print::is_space;
use super::value::Value;

pub(super) fn capitalize(s: &str) -> String {
    let mut chars = s.chars();
    let first = chars.next().map(|c| c.to_uppercase().collect::<String>()).unwrap_or_default();
    first + &chars.as_str().to_lowercase()
}

/// Python's `str.casefold`: the lower case of the upper case. Cherokee folds to upper case, because
/// Unicode added its lower case later.
pub(super) fn casefold(s: &str) -> String {
    let fold = |c: char| match c {
        'ı' => c.to_string(),
        '\u{13a0}'..='\u{13fd}' | '\u{ab70}'..='\u{abbf}' => c.to_uppercase().collect(),
        _ => c.to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect(),
    };
    s.chars().map(fold).collect()
}

/// Upper case after every character that is not a letter.
pub(super) fn title(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut within = false;
    for c in s.chars() {
        if within {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        within = c.is_lowercase() || c.is_uppercase();
    }
    out
}

/// Replaces the first `most` occurrences.
pub(super) fn replace(meter: &Meter, s: &str, (old, new): (&str, &str), most: Option<usize>) -> Result<Value, Fault> {
    meter.bytes(s.len())?;
    let most = most.unwrap_or(usize::MAX);
    let mut out = TextBuilder::new(meter);
    let mut done = 0;
    for (at, found) in s.match_indices(old).take(most) {
        out.push(&s[done..at])?;
        out.push(new)?;
        done = at + found.len();
    }
    out.push(&s[done..])?;
    Ok(Value::Str(out.finish()))
}

/// Splits at `sep`, or at whitespace without one, at most `most` times, optionally from the right.
pub(super) fn split(
    meter: &Meter,
    s: &str,
    sep: Option<&str>,
    (most, from_right): (Option<usize>, bool),
) -> Result<Value, Fault> {
    let most = most.unwrap_or(usize::MAX);
    // Charged before the pieces are created: one per byte at worst.
    let pieces = match sep {
        Some("") => return Err(Fault::wrong("split: the separator is empty")),
        Some(sep) => s.matches(sep).count().min(most) + 1,
        None => s.len().min(most.saturating_add(1)),
    };
    meter.bytes(pieces * size_of::<Value>())?;
    let parts: Vec<&str> = match (sep, from_right) {
        (Some(sep), false) => s.splitn(most.saturating_add(1), sep).collect(),
        (Some(sep), true) => {
            let mut parts: Vec<&str> = s.rsplitn(most.saturating_add(1), sep).collect();
            parts.reverse();
            parts
        }
        (None, false) => {
            let mut parts = Vec::new();
            let mut rest = s.trim_start_matches(is_space);
            while !rest.is_empty() {
                let end = if parts.len() == most { None } else { rest.find(is_space) };
                let Some(end) = end else {
                    parts.push(if parts.len() == most { rest } else { rest.trim_end_matches(is_space) });
                    break;
                };
                parts.push(&rest[..end]);
                rest = rest[end..].trim_start_matches(is_space);
            }
            parts
        }
        (None, true) => {
            let mut parts = Vec::new();
            let mut rest = s.trim_end_matches(is_space);
            while !rest.is_empty() {
                let start = if parts.len() == most { None } else { rest.rfind(is_space) };
                let Some(start) = start else {
                    parts.push(rest);
                    break;
                };
                let space = rest[start..].chars().next().map_or(1, char::len_utf8);
                parts.push(&rest[start + space..]);
                rest = rest[..start].trim_end_matches(is_space);
            }
            parts.reverse();
            parts
        }
    };
    let parts = parts.into_iter().map(|part| meter.text(part)).collect::<Result<_, _>>()?;
    Value::list(meter, parts)
}

/// Lines ended by any of Python's line boundaries.
pub(super) fn lines<'s>(meter: &Meter, s: &'s str, keep: bool) -> Result<Vec<&'s str>, Fault> {
    let mut lines = Vec::new();
    let mut rest = s;
    let end =
        |c: char| matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    while let Some(at) = rest.find(end) {
        let mark = if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(1, char::len_utf8) };
        meter.bytes(size_of::<&str>())?;
        lines.push(&rest[..if keep { at + mark } else { at }]);
        rest = &rest[at + mark..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    Ok(lines)
}
