//! `"%s" % value` and `"{}".format(value)`.

use super::Fault;
use super::args::Args;
use super::meter::{Meter, Text};
use super::ops::item;
use super::print::float_text;
use super::value::{SeqKind, Value};
use std::iter::Peekable;
use std::str::Chars;

/// Digits after the point. More say nothing about a double.
const MOST_DIGITS: usize = 400;

/// How one value is to be written.
struct Spec {
    fill: char,
    /// `<`, `>`, `^`, or `=` for zeros between sign and digits.
    align: Option<char>,
    plus: Option<char>,
    width: usize,
    precision: Option<usize>,
    commas: bool,
    kind: Option<char>,
}

fn number(chars: &mut Peekable<Chars>) -> Result<Option<usize>, Fault> {
    let mut n: Option<usize> = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        chars.next();
        n = Some(n.unwrap_or(0).saturating_mul(10).saturating_add(digit as usize));
    }
    Ok(n)
}

/// `pattern % values`
pub(super) fn percent(meter: &Meter, pattern: &str, values: &Value) -> Result<Value, Fault> {
    let tuple = match values {
        Value::Seq(seq) if seq.kind == SeqKind::Tuple => Some(seq),
        _ => None,
    };
    let mut used = 0;
    let mut next = || {
        used += 1;
        match tuple {
            Some(seq) => seq.items.get(used - 1).cloned(),
            None => (used == 1).then(|| values.clone()),
        }
        .ok_or_else(|| Fault::wrong("% was given too few values"))
    };
    let mut out = Text::new(meter);
    let mut by_name = false;
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.char(c)?;
            continue;
        }
        let mut value = None;
        if chars.peek() == Some(&'(') {
            chars.next();
            let name: String = chars.by_ref().take_while(|c| *c != ')').collect();
            let found = item(meter, values, &Value::from(&*name))?;
            value = Some(found.ok_or_else(|| Fault::wrong(format!("% was given no {name:?}")))?);
            by_name = true;
        }
        let mut spec =
            Spec { fill: ' ', align: Some('>'), plus: None, width: 0, precision: None, commas: false, kind: None };
        while let Some(flag) = chars.next_if(|c| matches!(c, '-' | '0' | '+' | ' ' | '#')) {
            match flag {
                '-' => spec.align = Some('<'),
                '0' if spec.align == Some('>') => (spec.fill, spec.align) = ('0', Some('=')),
                '+' => spec.plus = Some('+'),
                ' ' => spec.plus = spec.plus.or(Some(' ')),
                _ => {}
            }
        }
        spec.width = number(&mut chars)?.unwrap_or(0);
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(number(&mut chars)?.unwrap_or(0));
        }
        match chars.next() {
            Some('%') => out.push("%")?,
            Some(kind @ ('s' | 'd' | 'i' | 'u' | 'f' | 'F' | 'x' | 'X')) => {
                let value = value.map_or_else(&mut next, Ok)?;
                spec.kind = Some(if matches!(kind, 'i' | 'u') { 'd' } else { kind });
                let value = match (kind, value) {
                    ('s', value) => Value::Str(value.text(meter)?),
                    ('d' | 'i' | 'u', Value::Float(n)) if n.is_finite() => Value::Int(n as i128),
                    (_, value) => value,
                };
                spec.write(meter, &value, &mut out)?;
            }
            other => return Err(Fault::wrong(format!("%{} is not supported", other.unwrap_or(' ')))),
        }
    }
    if !by_name && (tuple.is_some_and(|seq| used < seq.items.len()) || (used == 0 && is_lone(values))) {
        return Err(Fault::wrong("% was given too many values"));
    }
    Ok(Value::Str(out.finish()))
}

/// Whether `"text" % value` has a value too many.
fn is_lone(value: &Value) -> bool {
    !matches!(value, Value::Dict(_))
        && !matches!(value, Value::Seq(seq) if seq.kind != SeqKind::Generator(false.into()))
}

/// `pattern.format(…)`
pub(super) fn braces(meter: &Meter, pattern: &str, args: &Args) -> Result<Value, Fault> {
    let mut out = Text::new(meter);
    let mut counted = 0;
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '{' if chars.next_if_eq(&'{').is_some() => out.push("{")?,
            '}' if chars.next_if_eq(&'}').is_some() => out.push("}")?,
            '{' => {
                let mut field = String::new();
                loop {
                    match chars.next() {
                        Some('}') => break,
                        Some('{') => return Err(Fault::wrong("format: a field within a field is not supported")),
                        Some(c) => field.push(c),
                        None => return Err(Fault::wrong("format: a field is not closed")),
                    }
                }
                let (field, spec) = field.split_once(':').unwrap_or((&field, ""));
                let (path, convert) = field.split_once('!').map_or((field, None), |(path, how)| (path, Some(how)));
                let mut value = lookup(meter, path, args, &mut counted)?;
                match convert {
                    None => {}
                    Some("s") => value = Value::Str(value.text(meter)?),
                    Some(how) => return Err(Fault::wrong(format!("format: !{how} is not supported"))),
                }
                Spec::parse(spec)?.write(meter, &value, &mut out)?;
            }
            '}' => return Err(Fault::wrong("format: a single } stands alone")),
            c => out.char(c)?,
        }
    }
    Ok(Value::Str(out.finish()))
}

fn lookup(meter: &Meter, path: &str, args: &Args, counted: &mut usize) -> Result<Value, Fault> {
    let missing = || Fault::wrong(format!("format was given no {path:?}"));
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let mut value = match (&path[..end], path[..end].parse::<usize>()) {
        ("", _) => {
            *counted += 1;
            args.positional.get(*counted - 1).cloned()
        }
        (_, Ok(index)) => args.positional.get(index).cloned(),
        (name, Err(_)) => args.named.iter().find(|(n, _)| &**n == name).map(|(_, v)| v.clone()),
    }
    .ok_or_else(missing)?;
    let mut rest = &path[end..];
    while let Some(inner) = rest.strip_prefix('[') {
        let (key, after) = inner.split_once(']').ok_or_else(missing)?;
        let key = key.parse().map_or_else(|_| Value::from(key), Value::Int);
        value = item(meter, &value, &key)?.ok_or_else(missing)?;
        rest = after;
    }
    // Attributes of Python's own objects are what a sandbox forbids; dicts have none.
    if rest.is_empty() { Ok(value) } else { Err(missing()) }
}

impl Spec {
    fn parse(text: &str) -> Result<Spec, Fault> {
        let mut spec =
            Spec { fill: ' ', align: None, plus: None, width: 0, precision: None, commas: false, kind: None };
        let mut chars = text.chars().peekable();
        let mut ahead = text.chars();
        let (first, second) = (ahead.next(), ahead.next());
        if matches!(second, Some('<' | '>' | '^' | '=')) {
            (spec.fill, spec.align) = (first.unwrap_or(' '), second);
            chars.nth(1);
        } else if matches!(first, Some('<' | '>' | '^' | '=')) {
            spec.align = chars.next();
        }
        spec.plus = chars.next_if(|c| matches!(c, '+' | ' ' | '-')).filter(|c| *c != '-');
        if chars.next_if_eq(&'0').is_some() && spec.align.is_none() {
            (spec.fill, spec.align) = ('0', Some('='));
        }
        spec.width = number(&mut chars)?.unwrap_or(0);
        spec.commas = chars.next_if_eq(&',').is_some();
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = number(&mut chars)?;
        }
        spec.kind = chars.next();
        match (spec.kind, chars.next()) {
            (None | Some('s' | 'd' | 'f' | 'F' | 'x' | 'X' | '%'), None) => Ok(spec),
            _ => Err(Fault::wrong(format!("the format {text:?} is not supported"))),
        }
    }

    fn write(&self, meter: &Meter, value: &Value, out: &mut Text) -> Result<(), Fault> {
        let precision = self.precision.unwrap_or(6);
        if precision > MOST_DIGITS && !matches!(value, Value::Str(_)) {
            return Err(Fault::limit(format!("a number of more than {MOST_DIGITS} digits")));
        }
        let unfit = || Fault::wrong(format!("a {} cannot be formatted as {:?}", value.type_name(), self.kind));
        let mut body = match (self.kind, value) {
            (Some('f' | 'F'), value) => format!("{:.precision$}", value.number().ok_or_else(unfit)?),
            (Some('%'), value) => format!("{:.precision$}%", value.number().ok_or_else(unfit)? * 100.0),
            (Some('d'), value) => value.int().ok_or_else(unfit)?.to_string(),
            (Some('x'), value) => format!("{:x}", value.int().ok_or_else(unfit)?),
            (Some('X'), value) => format!("{:X}", value.int().ok_or_else(unfit)?),
            (None, Value::Int(n)) => n.to_string(),
            (None, Value::Float(n)) => match self.precision {
                None => float_text(*n),
                Some(_) => return Err(unfit()),
            },
            (None | Some('s'), value @ (Value::Str(_) | Value::Bool(_))) => {
                let text = value.text(meter)?;
                match self.precision {
                    Some(most) => text.chars().take(most).collect(),
                    None => text.to_string(),
                }
            }
            (None, value) if self.width == 0 => value.text(meter)?.to_string(),
            _ => return Err(unfit()),
        };
        let numeric = self.kind.is_some_and(|k| k != 's') || matches!(value, Value::Int(_) | Value::Float(_));
        if self.commas {
            body = commas(&body);
        }
        if let Some(plus) = self.plus
            && numeric
            && !body.starts_with('-')
        {
            body.insert(0, plus);
        }
        let room = self.width.saturating_sub(body.chars().count());
        let (left, right) = match self.align.unwrap_or(if numeric { '>' } else { '<' }) {
            '<' => (0, room),
            '^' => (room / 2, room - room / 2),
            '=' if numeric => {
                let sign = usize::from(body.starts_with(['-', '+', ' ']));
                out.push(&body[..sign])?;
                body.drain(..sign);
                (room, 0)
            }
            _ => (room, 0),
        };
        let fill = if self.align == Some('=') && !numeric { ' ' } else { self.fill }.to_string();
        out.times(&fill, left)?;
        out.push(&body)?;
        out.times(&fill, right)
    }
}

/// A comma before every third digit from the point.
fn commas(number: &str) -> String {
    let digits = number.find(|c: char| c.is_ascii_digit()).unwrap_or(0);
    let end = number[digits..].find(|c: char| !c.is_ascii_digit()).map_or(number.len(), |i| digits + i);
    let mut out = number[..digits].to_string();
    for (i, c) in number[digits..end].char_indices() {
        if i > 0 && (end - digits - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    out + &number[end..]
}
