//! `"%s" % value` and `"{}".format(value)`.

use super::Fault;
use super::args::Args;
use super::meter::{Meter, TextBuilder};
use super::numbers::whole;
use super::ops::item;
use super::print::float_text;
use super::value::{SeqKind, Value};
use std::iter::Peekable;
use std::str::Chars;

/// Most digits after the decimal point. Bounds the memory that one format specification can take.
const MAX_DIGITS: usize = 400;

/// Format specification of one value.
struct Spec {
    fill: char,
    /// `<`, `>`, `^`, or `=` to fill between sign and digits.
    align: char,
    plus: Option<char>,
    /// `#`: with `0x` before hexadecimal digits, and a decimal point for the other types.
    alternate: bool,
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
    let mut out = TextBuilder::new(meter);
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
        let mut spec = Spec::new('>');
        while let Some(flag) = chars.next_if(|c| matches!(c, '-' | '0' | '+' | ' ' | '#')) {
            match flag {
                '-' => (spec.fill, spec.align) = (' ', '<'),
                '0' if spec.align == '>' => (spec.fill, spec.align) = ('0', '='),
                '#' => spec.alternate = true,
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
                    ('d' | 'i' | 'u', Value::Float(n)) => Value::Int(whole(n)?),
                    (_, value) => value,
                };
                if kind == 's' && spec.align == '=' {
                    (spec.fill, spec.align) = (' ', '>');
                }
                spec.write(&value, &mut out)?;
            }
            other => return Err(Fault::wrong(format!("%{} is not supported", other.unwrap_or(' ')))),
        }
    }
    if !by_name && (tuple.is_some_and(|seq| used < seq.items.len()) || (used == 0 && is_single_value(values))) {
        return Err(Fault::wrong("% was given too many values"));
    }
    Ok(Value::Str(out.finish()))
}

/// Whether `"text" % value` is an error if the text has no field for the value. As in Python, it is
/// not for a dict or a sequence.
fn is_single_value(value: &Value) -> bool {
    !matches!(value, Value::Dict(_)) && !matches!(value, Value::Seq(seq) if !matches!(seq.kind, SeqKind::Generator(_)))
}

/// `pattern.format(…)`
pub(super) fn braces(meter: &Meter, pattern: &str, args: &Args) -> Result<Value, Fault> {
    let mut out = TextBuilder::new(meter);
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
                match spec {
                    "" => value.write(&mut out)?,
                    spec => Spec::parse(spec, &value)?.write(&value, &mut out)?,
                }
            }
            '}' => return Err(Fault::wrong("format: a single } without {")),
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
    // The sandbox forbids attributes of Python's own objects, and dicts have none.
    if rest.is_empty() { Ok(value) } else { Err(missing()) }
}

impl Spec {
    fn new(align: char) -> Spec {
        Spec { fill: ' ', align, plus: None, alternate: false, width: 0, precision: None, commas: false, kind: None }
    }

    /// Parses the part of a field after its colon, for this value.
    fn parse(text: &str, value: &Value) -> Result<Spec, Fault> {
        let unfit = || Fault::wrong(format!("the format {text:?} of a {} is not supported", value.type_name()));
        let numeric = value.number().is_some();
        let mut spec = Spec::new(if numeric { '>' } else { '<' });
        let mut chars = text.chars().peekable();
        let mut ahead = text.chars();
        let is_align = |c: &char| matches!(c, '<' | '>' | '^' | '=');
        let (filled, aligned) = (ahead.nth(1).filter(is_align), chars.peek().copied().filter(is_align));
        if filled.is_some() {
            spec.fill = chars.next().unwrap_or(' ');
        }
        if let Some(align) = filled.or(aligned) {
            spec.align = align;
            chars.next();
        }
        let sign = chars.next_if(|c| matches!(c, '+' | ' ' | '-'));
        spec.plus = sign.filter(|c| *c != '-');
        spec.alternate = chars.next_if_eq(&'#').is_some();
        if filled.is_none() && chars.next_if_eq(&'0').is_some() {
            spec.fill = '0';
            if aligned.is_none() && numeric {
                spec.align = '=';
            }
        }
        spec.width = number(&mut chars)?.unwrap_or(0);
        spec.commas = chars.next_if_eq(&',').is_some();
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(number(&mut chars)?.ok_or_else(unfit)?);
        }
        spec.kind = chars.next();
        // Python puts commas between such zeros too.
        let grouped = spec.commas && spec.fill == '0' && spec.align == '=';
        let fits = match (spec.kind, value) {
            (None | Some('s'), Value::Str(_)) => sign.is_none() && !spec.alternate && !spec.commas && spec.align != '=',
            (Some('f' | 'F' | '%'), _) => numeric && !grouped,
            (None, Value::Float(_)) => spec.precision.is_none() && !spec.alternate && !grouped,
            (None | Some('d'), _) => numeric && spec.precision.is_none() && !grouped,
            (Some('x' | 'X'), _) => numeric && spec.precision.is_none() && !spec.commas,
            _ => false,
        };
        if fits && chars.next().is_none() { Ok(spec) } else { Err(unfit()) }
    }

    fn write(&self, value: &Value, out: &mut TextBuilder) -> Result<(), Fault> {
        let (sign, body) = self.parts(value)?;
        let room = self.width.saturating_sub(sign.len() + body.chars().count());
        let (left, between, right) = match self.align {
            '<' => (0, 0, room),
            '^' => (room / 2, 0, room - room / 2),
            '=' => (0, room, 0),
            _ => (room, 0, 0),
        };
        let fill = self.fill.to_string();
        out.times(&fill, left)?;
        out.push(&sign)?;
        out.times(&fill, between)?;
        out.push(&body)?;
        out.times(&fill, right)
    }

    /// The sign with the prefix of the base, and the digits.
    fn parts(&self, value: &Value) -> Result<(String, String), Fault> {
        if let (None | Some('s'), Value::Str(text)) = (self.kind, value) {
            let most = self.precision.unwrap_or(usize::MAX);
            return Ok((String::new(), text.chars().take(most).collect()));
        }
        let precision = self.precision.unwrap_or(6);
        if precision > MAX_DIGITS {
            return Err(Fault::limit(format!("a number of more than {MAX_DIGITS} digits")));
        }
        let unfit = || Fault::wrong(format!("a {} cannot be formatted as {:?}", value.type_name(), self.kind));
        let (negative, mut body) = match (self.kind, value) {
            (Some('f' | 'F' | '%'), _) | (None, Value::Float(_)) => {
                let n = value.number().ok_or_else(unfit)? * if self.kind == Some('%') { 100.0 } else { 1.0 };
                let point = if self.alternate && precision == 0 { "." } else { "" };
                let body = match self.kind {
                    Some(_) if n.is_finite() => format!("{:.precision$}{point}", n.abs()),
                    _ => float_text(n.abs()),
                };
                (n.is_sign_negative() && !n.is_nan(), body)
            }
            _ => {
                let n = value.int().ok_or_else(unfit)?;
                let digits = match self.kind {
                    Some('x') => format!("{:x}", n.unsigned_abs()),
                    Some('X') => format!("{:X}", n.unsigned_abs()),
                    _ => n.unsigned_abs().to_string(),
                };
                (n < 0, format!("{digits:0>0$}", self.precision.unwrap_or(0)))
            }
        };
        match self.kind {
            Some('F') => body = body.to_uppercase(),
            Some('%') => body.push('%'),
            _ => {}
        }
        if self.commas {
            body = commas(&body);
        }
        let mut sign: String = if negative { Some('-') } else { self.plus }.into_iter().collect();
        if let (true, Some(kind @ ('x' | 'X'))) = (self.alternate, self.kind) {
            sign.extend(['0', kind]);
        }
        Ok((sign, body))
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
