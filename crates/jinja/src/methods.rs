//! Python's methods of strings, lists and dicts. Methods that change a list or dict are missing:
//! the sandbox of transformers forbids them too.

use super::Fault;
use super::args::{Args, flag, int, optional_text, required, size, text};
use super::format::braces;
use super::meter::{Meter, TextBuilder};
use super::numbers::{is_decimal, is_digit};
use super::ops::{equal, escape};
use super::print::is_space;
use super::strings::{capitalize, casefold, lines, replace, split, title};
use super::value::{Seq, SeqKind, Value};
use std::sync::Arc;

const OF_STR: [&str; 42] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
    "encode",
    "expandtabs",
];
const OF_DICT: [&str; 6] = ["get", "items", "keys", "values", "copy", "fromkeys"];
/// The sandbox hides these methods, even if a dict has a key of that name.
const OF_DICT_HIDDEN: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
const OF_LIST: [&str; 3] = ["count", "index", "copy"];

/// Result of Python's `getattr`.
pub(super) enum Attribute {
    Method,
    /// Exists, but is forbidden in templates.
    Hidden,
    Missing,
}

pub(super) fn attribute(value: &Value, name: &str) -> Attribute {
    let (methods, hidden): (&[&str], &[&str]) = match value {
        Value::Str(_) | Value::Markup(_) => (&OF_STR, &[]),
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
        Value::Markup(_) => of_markup(meter, &value.plain(), name, args),
        Value::Str(text) => {
            meter.bytes(text.len())?;
            of_str(meter, text, name, args.plain())
        }
        Value::Dict(dict) => {
            let pairs = &dict.pairs;
            meter.bytes(if name == "get" { 0 } else { pairs.len() * size_of::<Value>() })?;
            let view = |kind, items| Value::seq(meter, SeqKind::View(kind), items);
            match name {
                "get" => {
                    let [key, default] = args.bind("get", ["key", "default"])?;
                    let found = dict.get(meter, &required(key, "get")?)?.cloned();
                    Ok(found.or(default).unwrap_or(Value::None))
                }
                "items" => {
                    args.none(name)?;
                    let pair = |(k, v): &(Value, Value)| Value::tuple(meter, vec![k.clone(), v.clone()]);
                    view("dict_items", pairs.iter().map(pair).collect::<Result<_, _>>()?)
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

/// The result of a method of markup is markup, and its arguments are escaped.
fn of_markup(meter: &Meter, value: &Value, name: &str, mut args: Args) -> Result<Value, Fault> {
    let escaped = |value: &Value| match value {
        Value::Str(text) => {
            let mut out = TextBuilder::new(meter);
            escape(text, &mut out)?;
            Ok(Value::Str(out.finish()))
        }
        other => Ok(other.plain()),
    };
    match name {
        "replace" => {
            if let Some(new) = args.positional.get_mut(1) {
                *new = escaped(new)?;
            }
        }
        "join" => {
            if let Some(items) = args.positional.first_mut() {
                let parts = items.items(meter)?.items.iter().map(escaped).collect::<Result<_, _>>()?;
                *items = Value::list(meter, parts)?;
            }
        }
        "format" | "partition" | "rpartition" => {
            return Err(Fault::wrong(format!("the method {name} of a safe string is not supported")));
        }
        _ => {}
    }
    call(meter, value, name, args)?.into_markup(meter)
}

fn of_seq(meter: &Meter, seq: &Seq, value: &Value, name: &str, args: Args) -> Result<Value, Fault> {
    if name == "copy" {
        args.none(name)?;
        return Ok(value.clone());
    }
    let [wanted] = args.bind(name, ["value"])?;
    let wanted = required(wanted, name)?;
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
            split(meter, s, sep.as_deref(), (usize::try_from(most).ok(), name == "rsplit"))
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
            match required(what, name)? {
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
            let (old, new) = (text(required(old, name)?, name)?, text(required(new, name)?, name)?);
            replace(meter, s, (&old, &new), usize::try_from(int(count, -1, name)?).ok())
        }
        "join" => {
            let [items] = args.bind(name, ["iterable"])?;
            let items = required(items, name)?.items(meter)?;
            let mut out = TextBuilder::new(meter);
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
            let what = text(required(what, name)?, name)?;
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
            let what = text(required(what, name)?, name)?;
            let cut = if name == "removeprefix" { s.strip_prefix(&*what) } else { s.strip_suffix(&*what) };
            made(cut.unwrap_or(s))
        }
        "partition" | "rpartition" => {
            let [what] = args.bind(name, ["sep"])?;
            let what = text(required(what, name)?, name)?;
            if what.is_empty() {
                return Err(Fault::wrong(format!("{name}: the separator is empty")));
            }
            let cut = if name == "partition" { s.split_once(&*what) } else { s.rsplit_once(&*what) };
            let parts = match cut {
                Some((left, right)) => [left, &what, right],
                None if name == "partition" => [s, "", ""],
                None => ["", "", s],
            };
            Value::tuple(meter, parts.into_iter().map(made).collect::<Result<_, _>>()?)
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let (width, fill) = if name == "zfill" {
                let [width] = args.bind(name, ["width"])?;
                (width, Some("0".into()))
            } else {
                let [width, fill] = args.bind(name, ["width", "fillchar"])?;
                (width, fill)
            };
            let width = size(int(Some(required(width, name)?), 0, name)?);
            let room = width.saturating_sub(s.chars().count());
            let fill = text(fill.unwrap_or_else(|| " ".into()), name)?;
            if fill.chars().count() != 1 {
                return Err(Fault::wrong(format!("{name} fills with one character, not {fill:?}")));
            }
            let sign = usize::from(name == "zfill" && s.starts_with(['+', '-']));
            let left = match name {
                "ljust" => 0,
                // If the padding is odd, Python puts the extra character on the left if the width
                // is odd, too.
                "center" => room / 2 + (room & width & 1),
                _ => room,
            };
            let mut out = TextBuilder::new(meter);
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
                "lower" => made(&s.to_lowercase()),
                "casefold" => made(&casefold(s)),
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
                "isalpha" => is(!s.is_empty() && s.chars().all(|c| c.is_alphabetic() && !c.is_numeric())),
                "isalnum" => is(!s.is_empty() && s.chars().all(char::is_alphanumeric)),
                "isdecimal" => is(!s.is_empty() && s.chars().all(is_decimal)),
                "isdigit" => is(!s.is_empty() && s.chars().all(is_digit)),
                "isnumeric" => is(!s.is_empty() && s.chars().all(char::is_numeric)),
                "islower" => is(s.chars().any(char::is_lowercase) && !s.chars().any(char::is_uppercase)),
                "isupper" => is(s.chars().any(char::is_uppercase) && !s.chars().any(char::is_lowercase)),
                "istitle" => is(s.chars().any(char::is_alphabetic) && title(s) == **s),
                _ => Err(Fault::wrong(format!("the method {name} of a str is not supported"))),
            }
        }
    }
}
