//! Methods of strings, lists and dicts, as Python has them. Those that would change a list or dict are not there: the sandbox
//! that templates are written for forbids them too.

use super::Fault;
use super::args::{Args, flag, int, need, optional_text, size, text};
use super::format::braces;
use super::meter::{Meter, Text};
use super::ops::equal;
use super::value::{Seq, SeqKind, Value, is_space};
use std::sync::Arc;

const OF_STR: [&str; 42] = [
    "capitalize", "casefold", "center", "count", "endswith", "find", "format", "index", "isalnum", "isalpha", "isascii",
    "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip",
    "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip",
    "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill", "encode", "expandtabs",
];
const OF_DICT: [&str; 6] = ["get", "items", "keys", "values", "copy", "fromkeys"];
/// Hidden by the sandbox even from a dict that has such a key.
const OF_DICT_HIDDEN: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
const OF_LIST: [&str; 3] = ["count", "index", "copy"];

/// What Python's `getattr` gives on such a value.
pub(super) enum Attribute {
    Method,
    /// There, and not for templates.
    Hidden,
    Missing,
}

pub(super) fn attribute(value: &Value, name: &str) -> Attribute {
    let (methods, hidden): (&[&str], &[&str]) = match value {
        Value::Str(_) => (&OF_STR, &[]),
        Value::Dict(_) => (&OF_DICT, &OF_DICT_HIDDEN),
        Value::Seq(seq) if seq.kind == SeqKind::List => (&OF_LIST, &[]),
        Value::Seq(seq) if seq.kind == SeqKind::Tuple => (&OF_LIST[..2], &[]),
        Value::Loop(_) => (&["cycle", "changed"], &[]),
        _ => (&[], &[]),
    };
    match name {
        _ if methods.contains(&name) => Attribute::Method,
        _ if hidden.contains(&name) || name.starts_with("__") => Attribute::Hidden,
        _ => Attribute::Missing,
    }
}

pub(super) fn call(meter: &Meter, value: &Value, name: &str, args: Args) -> Result<Value, Fault> {
    match value {
        Value::Str(text) => {
            meter.bytes(text.len())?;
            of_str(meter, text, name, args)
        }
        Value::Dict(dict) => {
            let pairs = &dict.pairs;
            meter.bytes(if name == "get" { 0 } else { pairs.len() * size_of::<Value>() })?;
            let view = |kind, items| Value::seq(meter, SeqKind::View(kind), items);
            match name {
                "get" => {
                    let [key, default] = args.bind("get", ["key", "default"])?;
                    let found = dict.get(meter, &need(key, "get")?)?.cloned();
                    return Ok(found.or(default).unwrap_or(Value::None));
                }
                "items" => {
                    args.none(name)?;
                    let pair = |(k, v): &(Value, Value)| Value::tuple(meter, vec![k.clone(), v.clone()]);
                    return view("dict_items", pairs.iter().map(pair).collect::<Result<_, _>>()?);
                }
                "keys" => view("dict_keys", pairs.iter().map(|(k, _)| k.clone()).collect()),
                "values" => view("dict_values", pairs.iter().map(|(_, v)| v.clone()).collect()),
                "copy" => Ok(value.clone()),
                _ => Err(Fault::wrong(format!("the method {name} of a dict is not supported"))),
            }
        }
        Value::Seq(seq) => of_seq(meter, seq, value, name, args),
        other => Err(Fault::wrong(format!("a {} has no method {name}", other.type_name()))),
    }
}

fn of_seq(meter: &Meter, seq: &Seq, value: &Value, name: &str, args: Args) -> Result<Value, Fault> {
    if name == "copy" {
        args.none(name)?;
        return Ok(value.clone());
    }
    let [wanted] = args.bind(name, ["value"])?;
    let wanted = need(wanted, name)?;
    let mut found = Vec::new();
    for (i, item) in seq.items.iter().enumerate() {
        if equal(meter, item, &wanted)? {
            found.push(i);
        }
    }
    match (name, found.first()) {
        ("count", _) => Ok(Value::Int(found.len() as i128)),
        (_, Some(first)) => Ok(Value::Int(*first as i128)),
        (_, None) => Err(Fault::wrong("index: it is not in the list")),
    }
}

fn of_str(meter: &Meter, s: &Arc<str>, name: &str, args: Args) -> Result<Value, Fault> {
    let made = |text: &str| meter.text(text);
    let is = |b: bool| Ok(Value::Bool(b));
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(name, ["chars"])?;
            let chars = optional_text(chars, name)?;
            let drop = |c: char| chars.as_ref().map_or(is_space(c), |chars| chars.contains(c));
            let left = if name == "rstrip" { s } else { s.trim_start_matches(drop) };
            made(if name == "lstrip" { left } else { left.trim_end_matches(drop) })
        }
        "split" | "rsplit" => {
            let [sep, most] = args.bind(name, ["sep", "maxsplit"])?;
            let sep = optional_text(sep, name)?;
            let most = int(most, -1, name)?;
            split(meter, s, sep.as_deref(), usize::try_from(most).ok(), name == "rsplit")
        }
        "splitlines" => {
            let [keep] = args.bind(name, ["keepends"])?;
            let lines = lines(meter, s, flag(keep, false))?.into_iter().map(made).collect::<Result<_, _>>()?;
            Value::list(meter, lines)
        }
        "startswith" | "endswith" => {
            let [what] = args.bind(name, ["prefix"])?;
            let test = |what: &Value| match what {
                Value::Str(what) if name == "startswith" => Ok(s.starts_with(&**what)),
                Value::Str(what) => Ok(s.ends_with(&**what)),
                other => Err(Fault::wrong(format!("{name} takes a str, not a {}", other.type_name()))),
            };
            match need(what, name)? {
                Value::Seq(all) if all.kind == SeqKind::Tuple => {
                    for what in &all.items {
                        if test(what)? {
                            return is(true);
                        }
                    }
                    is(false)
                }
                what => is(test(&what)?),
            }
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
            let (old, new) = (text(need(old, name)?, name)?, text(need(new, name)?, name)?);
            replace(meter, s, &old, &new, usize::try_from(int(count, -1, name)?).ok())
        }
        "join" => {
            let [items] = args.bind(name, ["iterable"])?;
            let items = need(items, name)?.items(meter)?;
            let mut out = Text::new(meter);
            for (i, item) in items.items.iter().enumerate() {
                if i > 0 {
                    out.push(s)?;
                }
                out.push(&text(item.clone(), name)?)?;
            }
            Ok(Value::Str(out.finish()))
        }
        "format" => braces(meter, s, &args),
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let [what] = args.bind(name, ["sub"])?;
            let what = text(need(what, name)?, name)?;
            if name == "count" {
                return Ok(Value::Int(match what.is_empty() {
                    true => s.chars().count() + 1,
                    false => s.matches(&*what).count(),
                } as i128));
            }
            let found = if name.starts_with('r') { s.rfind(&*what) } else { s.find(&*what) };
            match found {
                Some(at) => Ok(Value::Int(s[..at].chars().count() as i128)),
                None if name.ends_with("find") => Ok(Value::Int(-1)),
                None => Err(Fault::wrong(format!("{name}: there is no {what:?}"))),
            }
        }
        "removeprefix" | "removesuffix" => {
            let [what] = args.bind(name, ["prefix"])?;
            let what = text(need(what, name)?, name)?;
            let cut = if name == "removeprefix" { s.strip_prefix(&*what) } else { s.strip_suffix(&*what) };
            made(cut.unwrap_or(s))
        }
        "partition" | "rpartition" => {
            let [what] = args.bind(name, ["sep"])?;
            let what = text(need(what, name)?, name)?;
            let cut = if name == "partition" { s.split_once(&*what) } else { s.rsplit_once(&*what) };
            let parts = match cut {
                Some((left, right)) => [left, &what, right],
                None if name == "partition" => [s, "", ""],
                None => ["", "", s],
            };
            Value::tuple(meter, parts.into_iter().map(made).collect::<Result<_, _>>()?)
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let [width, fill] = args.bind(name, ["width", "fillchar"])?;
            let width = size(int(Some(need(width, name)?), 0, name)?);
            let room = width.saturating_sub(s.chars().count());
            let fill = optional_text(fill, name)?.unwrap_or(if name == "zfill" { "0".into() } else { " ".into() });
            let sign = usize::from(name == "zfill" && s.starts_with(['+', '-']));
            let left = match name {
                "ljust" => 0,
                // Python puts the odd one left where the width is odd.
                "center" => room / 2 + (room & width & 1),
                _ => room,
            };
            let mut out = Text::new(meter);
            out.push(&s[..sign])?;
            out.times(&fill, left)?;
            out.push(&s[sign..])?;
            out.times(&fill, room - left)?;
            Ok(Value::Str(out.finish()))
        }
        _ => {
            args.none(name)?;
            match name {
                "upper" => made(&s.to_uppercase()),
                "lower" | "casefold" => made(&s.to_lowercase()),
                "title" => made(&title(s)),
                "capitalize" => made(&capitalize(s)),
                "swapcase" => {
                    let swap = |c: char| match c.is_uppercase() {
                        true => c.to_lowercase().collect::<String>(),
                        false => c.to_uppercase().collect(),
                    };
                    made(&s.chars().map(swap).collect::<String>())
                }
                "isascii" => is(s.is_ascii()),
                "isspace" => is(!s.is_empty() && s.chars().all(is_space)),
                "isalpha" => is(!s.is_empty() && s.chars().all(char::is_alphabetic)),
                "isalnum" => is(!s.is_empty() && s.chars().all(char::is_alphanumeric)),
                "isdigit" | "isdecimal" | "isnumeric" => is(!s.is_empty() && s.chars().all(char::is_numeric)),
                "islower" => is(s.chars().any(char::is_lowercase) && !s.chars().any(char::is_uppercase)),
                "isupper" => is(s.chars().any(char::is_uppercase) && !s.chars().any(char::is_lowercase)),
                "istitle" => is(s.chars().any(char::is_alphabetic) && title(s) == **s),
                _ => Err(Fault::wrong(format!("the method {name} of a str is not supported"))),
            }
        }
    }
}

fn capitalize(s: &str) -> String {
    let mut chars = s.chars();
    let first = chars.next().map(|c| c.to_uppercase().collect::<String>()).unwrap_or_default();
    first + &chars.as_str().to_lowercase()
}

/// Upper case after everything that is no letter.
fn title(s: &str) -> String {
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

pub(super) fn replace(meter: &Meter, s: &str, old: &str, new: &str, most: Option<usize>) -> Result<Value, Fault> {
    meter.bytes(s.len())?;
    let most = most.unwrap_or(usize::MAX);
    let mut out = Text::new(meter);
    let mut done = 0;
    for (at, found) in s.match_indices(old).take(most) {
        out.push(&s[done..at])?;
        out.push(new)?;
        done = at + found.len();
    }
    out.push(&s[done..])?;
    Ok(Value::Str(out.finish()))
}

fn split(meter: &Meter, s: &str, sep: Option<&str>, most: Option<usize>, from_right: bool) -> Result<Value, Fault> {
    let most = most.unwrap_or(usize::MAX);
    // Paid for before the pieces are made: one for every byte at worst.
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

/// Lines ended by any of the marks Python knows.
pub(super) fn lines<'s>(meter: &Meter, s: &'s str, keep: bool) -> Result<Vec<&'s str>, Fault> {
    let mut lines = Vec::new();
    let mut rest = s;
    let end = |c: char| matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
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
