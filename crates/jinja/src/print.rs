//! Python's `str` and `repr` of values.

use super::Fault;
use super::meter::{Meter, TextBuilder};
use super::value::{SeqKind, Value};
use std::sync::Arc;

impl Value {
    /// `str(self)`
    pub(super) fn write(&self, out: &mut TextBuilder) -> Result<(), Fault> {
        match self {
            Value::Undefined(_) => Ok(()),
            Value::Str(text) | Value::Markup(text) => out.push(text),
            other => other.repr(out),
        }
    }

    /// `str(self)`, without a copy if it is a string.
    pub(super) fn text(&self, meter: &Meter) -> Result<Arc<str>, Fault> {
        match self {
            Value::Str(text) | Value::Markup(text) => Ok(text.clone()),
            other => {
                let mut out = TextBuilder::new(meter);
                other.write(&mut out)?;
                Ok(out.finish())
            }
        }
    }

    /// `repr(self)`
    fn repr(&self, out: &mut TextBuilder) -> Result<(), Fault> {
        match self {
            Value::Undefined(_) => out.push("Undefined"),
            Value::None => out.push("None"),
            Value::Bool(b) => out.push(if *b { "True" } else { "False" }),
            Value::Int(n) => out.push(&n.to_string()),
            Value::Float(n) => out.push(&float_text(*n)),
            Value::Str(text) => repr_text(text, out),
            Value::Markup(text) => {
                out.push("Markup(")?;
                repr_text(text, out)?;
                out.push(")")
            }
            Value::Seq(seq) => {
                let (open, close) = match seq.kind {
                    SeqKind::List => ("[", "]"),
                    SeqKind::Tuple if seq.items.len() == 1 => ("(", ",)"),
                    SeqKind::Tuple => ("(", ")"),
                    SeqKind::View("dict_items") => ("dict_items([", "])"),
                    SeqKind::View("dict_keys") => ("dict_keys([", "])"),
                    SeqKind::View(_) => ("dict_values([", "])"),
                    SeqKind::Range => return repr_range(&seq.items, out),
                    SeqKind::Generator(_) => return Err(Fault::wrong("a generator cannot be printed; use |list")),
                };
                out.push(open)?;
                for (i, item) in seq.items.iter().enumerate() {
                    if i > 0 {
                        out.push(", ")?;
                    }
                    item.repr(out)?;
                }
                out.push(close)
            }
            Value::Dict(dict) => {
                out.push("{")?;
                for (i, (key, value)) in dict.pairs.iter().enumerate() {
                    if i > 0 {
                        out.push(", ")?;
                    }
                    key.repr(out)?;
                    out.push(": ")?;
                    value.repr(out)?;
                }
                out.push("}")
            }
            Value::Itself => out.push("<TemplateReference None>"),
            // Python prints an address here, which no template can rely on.
            other => Err(Fault::wrong(format!("a {} cannot be printed", other.type_name()))),
        }
    }
}

fn repr_range(items: &[Value], out: &mut TextBuilder) -> Result<(), Fault> {
    let of = |i: usize| items.get(i).and_then(Value::int).unwrap_or(0);
    let step = if items.len() > 1 { of(1) - of(0) } else { 1 };
    let (start, stop) = if items.is_empty() { (0, 0) } else { (of(0), of(items.len() - 1).saturating_add(step)) };
    match step {
        1 => out.push(&format!("range({start}, {stop})")),
        _ => out.push(&format!("range({start}, {stop}, {step})")),
    }
}

/// `repr` of a float: the shortest digits that parse to the same float, with an exponent below 1e-4
/// and from 1e16.
pub(super) fn float_text(n: f64) -> String {
    if n.is_nan() {
        return "nan".into();
    }
    if n.is_infinite() {
        return if n > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{n:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if n != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{n}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

fn repr_text(text: &str, out: &mut TextBuilder) -> Result<(), Fault> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            '\\' => out.push("\\\\")?,
            c if c == quote => {
                out.char('\\')?;
                out.char(c)?;
            }
            c if is_printable(c) => out.char(c)?,
            c => match c as u32 {
                code @ ..0x100 => out.push(&format!("\\x{code:02x}"))?,
                code @ ..0x10000 => out.push(&format!("\\u{code:04x}"))?,
                code => out.push(&format!("\\U{code:08x}"))?,
            },
        }
    }
    out.char(quote)
}

/// Python's `isprintable` of a character, except for characters that Unicode has not assigned.
fn is_printable(c: char) -> bool {
    let format = matches!(c as u32, 0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x180e | 0x200b..=0x200f | 0x202a..=0x202e
        | 0x2060..=0x206f | 0xfeff | 0xfff9..=0xfffb | 0xe000..=0xf8ff | 0xe0000..=0x10ffff);
    c == ' ' || !(c.is_control() || is_space(c) || format)
}

/// Python's `str.isspace` of a character, also `\s` in regular expressions.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}
