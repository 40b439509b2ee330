//! `tojson`: what Python's `json.dumps` writes, without escaping anything for HTML.

use super::Fault;
use super::meter::TextBuilder;
use super::print::float_text;
use super::value::{SeqKind, Value};
use std::cmp::Ordering;
use std::sync::Arc;

/// Layout of the JSON text.
pub(super) struct Layout {
    /// Indentation of each level; `None` prints everything on one line.
    pub(super) indent: Option<Arc<str>>,
    /// Separators between items, and between a key and its value.
    pub(super) separators: (Arc<str>, Arc<str>),
    pub(super) sort_keys: bool,
    pub(super) ascii: bool,
}

impl Layout {
    pub(super) fn write(&self, value: &Value, level: usize, out: &mut TextBuilder) -> Result<(), Fault> {
        match value {
            Value::None => out.push("null"),
            Value::Bool(b) => out.push(if *b { "true" } else { "false" }),
            Value::Int(n) => out.push(&n.to_string()),
            Value::Float(n) => out.push(&float(*n)),
            Value::Str(text) | Value::Markup(text) => self.string(text, out),
            Value::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple) => {
                out.push("[")?;
                for (i, item) in seq.items.iter().enumerate() {
                    self.between(i, level + 1, out)?;
                    self.write(item, level + 1, out)?;
                }
                self.close(seq.items.is_empty(), level, out)?;
                out.push("]")
            }
            Value::Dict(dict) => {
                out.push("{")?;
                let mut pairs: Vec<&(Value, Value)> = dict.pairs.iter().collect();
                if self.sort_keys {
                    if !pairs.iter().all(|(k, _)| matches!(k, Value::Str(_))) && pairs.len() > 1 {
                        return Err(Fault::wrong("keys that are not all strings cannot be sorted"));
                    }
                    pairs.sort_by(|(a, _), (b, _)| match (a, b) {
                        (Value::Str(a), Value::Str(b)) => a.cmp(b),
                        _ => Ordering::Equal,
                    });
                }
                for (i, (key, value)) in pairs.into_iter().enumerate() {
                    self.between(i, level + 1, out)?;
                    self.key(key, out)?;
                    out.push(&self.separators.1)?;
                    self.write(value, level + 1, out)?;
                }
                self.close(dict.pairs.is_empty(), level, out)?;
                out.push("}")
            }
            other => Err(Fault::wrong(format!("a {} cannot be written as JSON", other.type_name()))),
        }
    }

    fn key(&self, key: &Value, out: &mut TextBuilder) -> Result<(), Fault> {
        match key {
            Value::Str(key) | Value::Markup(key) => self.string(key, out),
            Value::None => out.push("\"null\""),
            Value::Bool(b) => out.push(if *b { "\"true\"" } else { "\"false\"" }),
            Value::Int(n) => out.push(&format!("\"{n}\"")),
            Value::Float(n) => out.push(&format!("\"{}\"", float(*n))),
            other => Err(Fault::wrong(format!("a {} cannot be a key in JSON", other.type_name()))),
        }
    }

    fn between(&self, i: usize, level: usize, out: &mut TextBuilder) -> Result<(), Fault> {
        if i > 0 {
            out.push(&self.separators.0)?;
        }
        self.line(level, out)
    }

    fn line(&self, level: usize, out: &mut TextBuilder) -> Result<(), Fault> {
        let Some(indent) = &self.indent else { return Ok(()) };
        out.push("\n")?;
        out.times(indent, level)
    }

    fn close(&self, empty: bool, level: usize, out: &mut TextBuilder) -> Result<(), Fault> {
        if empty { Ok(()) } else { self.line(level, out) }
    }

    fn string(&self, text: &str, out: &mut TextBuilder) -> Result<(), Fault> {
        out.push("\"")?;
        let mut plain = 0;
        for (i, c) in text.char_indices() {
            let wide = self.ascii && !(' '..='~').contains(&c);
            if !wide && !matches!(c, '"' | '\\' | '\0'..='\x1f') {
                continue;
            }
            out.push(&text[plain..i])?;
            plain = i + c.len_utf8();
            match c {
                '"' => out.push("\\\"")?,
                '\\' => out.push("\\\\")?,
                '\n' => out.push("\\n")?,
                '\r' => out.push("\\r")?,
                '\t' => out.push("\\t")?,
                '\x0c' => out.push("\\f")?,
                '\x08' => out.push("\\b")?,
                c => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push(&format!("\\u{unit:04x}"))?;
                    }
                }
            }
        }
        out.push(&text[plain..])?;
        out.push("\"")
    }
}

fn float(n: f64) -> String {
    match n {
        n if n.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        n => float_text(n),
    }
}
