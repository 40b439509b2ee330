//! Filters of one value. Filters of lists are in `sequences`.

use super::Fault;
use super::args::{Args, flag, int, optional_text, printed, required, size};
use super::eval::Interpreter;
use super::format::percent;
use super::json::Layout;
use super::meter::{Meter, TextBuilder};
use super::methods;
use super::numbers::{to_float, to_int};
use super::ops::escape;
use super::print::is_space;
use super::sequences;
use super::strings::{lines, replace};
use super::value::Value;

/// Jinja's own names, including those that are not supported here: any other name is a syntax
/// error.
pub(super) const NAMES: &str = "abs attr batch capitalize center count d default dictsort e escape filesizeformat first \
    float forceescape format groupby indent int items join last length list lower map max min pprint random reject \
    rejectattr replace reverse round safe select selectattr slice sort string striptags sum title tojson trim truncate \
    unique upper urlencode urlize wordcount wordwrap xmlattr";

pub(super) fn filter(it: &Interpreter, name: &str, value: Value, args: Args) -> Result<Value, Fault> {
    let meter = &it.meter;
    let text = |value: &Value| value.text(meter);
    let args = args.plain();
    if let Value::Markup(_) = value {
        return match name {
            "safe" | "escape" | "e" => Ok(value),
            "string" | "trim" | "upper" | "lower" | "capitalize" | "title" | "indent" | "center" | "default" | "d" => {
                filter(it, name, value.plain(), args)?.into_markup(meter)
            }
            "format" => Err(Fault::wrong("format on a safe string is not supported")),
            _ => filter(it, name, value.plain(), args),
        };
    }
    match name {
        "tojson" => to_json(meter, &value, args),
        "trim" => {
            let [chars] = args.bind(name, ["chars"])?;
            let chars = optional_text(chars, name)?;
            let drop = |c: char| chars.as_ref().map_or(is_space(c), |chars| chars.contains(c));
            let whole = text(&value)?;
            meter.bytes(whole.len())?;
            meter.text(whole.trim_matches(drop))
        }
        "default" | "d" => {
            let [default, boolean] = args.bind(name, ["default_value", "boolean"])?;
            let absent = matches!(value, Value::Undefined(_)) || (flag(boolean, false) && !value.truth());
            Ok(if absent { default.unwrap_or_else(|| "".into()) } else { value })
        }
        "length" | "count" => {
            args.none(name)?;
            Ok(Value::Int(value.len(meter)? as i128))
        }
        "string" => {
            args.none(name)?;
            text(&value).map(Value::Str)
        }
        "safe" => text(&value).map(Value::Markup),
        "upper" | "lower" | "capitalize" => methods::call(meter, &Value::Str(text(&value)?), name, args),
        "title" => {
            args.none(name)?;
            title(meter, &text(&value)?)
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
            let (old, new) = (required(old, name)?.text(meter)?, required(new, name)?.text(meter)?);
            let count = count.filter(|c| !matches!(c, Value::None));
            replace(meter, &text(&value)?, (&old, &new), usize::try_from(int(count, -1, name)?).ok())
        }
        "indent" => indent(meter, &text(&value)?, args),
        "center" => {
            let [width] = args.bind(name, ["width"])?;
            let width = Args { positional: vec![width.unwrap_or(Value::Int(80))], named: Vec::new() };
            methods::call(meter, &Value::Str(text(&value)?), name, width)
        }
        "format" => {
            let pattern = text(&value)?;
            let values = match args.named.is_empty() {
                true => Value::tuple(meter, args.positional)?,
                false => Value::dict(meter, args.named.into_iter().map(|(k, v)| (Value::Str(k), v)).collect())?,
            };
            percent(meter, &pattern, &values)
        }
        "truncate" => truncate(meter, &value, args),
        "wordcount" => {
            args.none(name)?;
            let text = text(&value)?;
            meter.bytes(text.len())?;
            let words = text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty());
            Ok(Value::Int(words.count() as i128))
        }
        "escape" | "e" | "forceescape" => {
            args.none(name)?;
            let mut out = TextBuilder::new(meter);
            escape(&text(&value)?, &mut out)?;
            Ok(Value::Markup(out.finish()))
        }
        "urlencode" => {
            args.none(name)?;
            let mut out = TextBuilder::new(meter);
            for byte in text(&value)?.bytes() {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' | b'/' => {
                        out.char(byte as char)?
                    }
                    other => out.push(&format!("%{other:02X}"))?,
                }
            }
            Ok(Value::Str(out.finish()))
        }
        "int" => {
            let [default, base] = args.bind(name, ["default", "base"])?;
            let base = int(base, 10, name)?;
            Ok(to_int(meter, &value, base)?.map(Value::Int).or(default).unwrap_or(Value::Int(0)))
        }
        "float" => {
            let [default] = args.bind(name, ["default"])?;
            Ok(to_float(meter, &value)?.map(Value::Float).or(default).unwrap_or(Value::Float(0.0)))
        }
        "abs" => {
            args.none(name)?;
            match value {
                Value::Float(n) => Ok(Value::Float(n.abs())),
                other => match other.int().and_then(i128::checked_abs) {
                    Some(n) => Ok(Value::Int(n)),
                    None => Err(Fault::wrong(format!("a {} has no absolute value", other.type_name()))),
                },
            }
        }
        "round" => round(&value, args),
        "attr" => {
            let [name] = args.bind(name, ["name"])?;
            it.attribute_only(&value, &required(name, "attr")?.text(meter)?)
        }
        _ => sequences::filter(it, name, value, args),
    }
}

fn to_json(meter: &Meter, value: &Value, args: Args) -> Result<Value, Fault> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ascii, indent, separators, sort_keys] = args.bind("tojson", names)?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Str(text)) => Some(text),
        Some(other) => {
            let mut out = TextBuilder::new(meter);
            out.times(" ", size(int(Some(other), 0, "indent")?))?;
            Some(out.finish())
        }
    };
    let separators = match separators {
        None | Some(Value::None) => (if indent.is_some() { "," } else { ", " }.into(), ": ".into()),
        Some(Value::Seq(pair)) => match &pair.items[..] {
            [Value::Str(items), Value::Str(keys)] => (items.clone(), keys.clone()),
            _ => return Err(Fault::wrong("separators must be two strings")),
        },
        Some(_) => return Err(Fault::wrong("separators must be two strings")),
    };
    let layout = Layout { indent, separators, sort_keys: flag(sort_keys, false), ascii: flag(ascii, false) };
    let mut out = TextBuilder::new(meter);
    layout.write(value, 0, &mut out)?;
    Ok(Value::Str(out.finish()))
}

/// Upper case after whitespace, dashes and opening brackets.
fn title(meter: &Meter, text: &str) -> Result<Value, Fault> {
    meter.bytes(text.len())?;
    let mut out = String::with_capacity(text.len());
    let mut begins = true;
    for c in text.chars() {
        if begins {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        begins = is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    }
    Ok(Value::Str(out.into()))
}

fn indent(meter: &Meter, text: &str, args: Args) -> Result<Value, Fault> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    let mut space = TextBuilder::new(meter);
    match width {
        Some(Value::Str(text)) => space.push(&text)?,
        other => space.times(" ", size(int(other, 4, "indent")?))?,
    }
    let (space, first, blank) = (space.finish(), flag(first, false), flag(blank, false));
    let whole = format!("{text}\n");
    let mut out = TextBuilder::new(meter);
    if first {
        out.push(&space)?;
    }
    for (i, line) in lines(meter, &whole, false)?.into_iter().enumerate() {
        if i > 0 {
            out.push("\n")?;
            if blank || !line.is_empty() {
                out.push(&space)?;
            }
        }
        out.push(line)?;
    }
    Ok(Value::Str(out.finish()))
}

fn truncate(meter: &Meter, value: &Value, args: Args) -> Result<Value, Fault> {
    let [length, killwords, end, leeway] = args.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let (length, leeway) = (size(int(length, 255, "truncate")?), size(int(leeway, 5, "truncate")?));
    let end = printed(end, "...", meter)?;
    let text = value.text(meter)?;
    meter.bytes(text.len())?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(Value::Str(text));
    }
    let Some(kept) = length.checked_sub(end.chars().count()) else {
        return Err(Fault::wrong("truncate: the length is less than that of its end"));
    };
    let kept: String = text.chars().take(kept).collect();
    let kept = if flag(killwords, false) { &kept[..] } else { kept.rsplit_once(' ').map_or(&kept[..], |(a, _)| a) };
    meter.text(&format!("{kept}{end}"))
}

fn round(value: &Value, args: Args) -> Result<Value, Fault> {
    let [precision, method] = args.bind("round", ["precision", "method"])?;
    let precision = int(precision, 0, "round")?.clamp(-300, 300) as i32;
    let Some(n) = value.number() else {
        return Err(Fault::wrong(format!("a {} cannot be rounded", value.type_name())));
    };
    let scale = 10f64.powi(precision);
    match method {
        Some(Value::Str(method)) if &*method == "ceil" => Ok(Value::Float((n * scale).ceil() / scale)),
        Some(Value::Str(method)) if &*method == "floor" => Ok(Value::Float((n * scale).floor() / scale)),
        Some(Value::Str(method)) if &*method != "common" => Err(Fault::wrong("round: common, ceil or floor")),
        _ => match value.int() {
            Some(n) if precision >= 0 => Ok(Value::Int(n)),
            Some(_) => Err(Fault::wrong("round: a whole number to tens is not supported")),
            None if precision < 0 => Ok(Value::Float((n * scale).round_ties_even() / scale)),
            // As in Python, rounds the exact decimal digits: the float 2.675 is slightly less than
            // 2.675 and rounds to 2.67.
            None => Ok(Value::Float(format!("{n:.*}", precision as usize).parse().unwrap_or(n))),
        },
    }
}
