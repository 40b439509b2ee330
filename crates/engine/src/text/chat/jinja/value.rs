//! Values as Python has them, because templates print them and test their types. They cannot be changed, only namespaces can.

use super::Fault;
use super::ast::{For, MacroDef};
use super::eval::Scope;
use super::meter::{Meter, Text};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Lists and dicts within each other. What a template builds deeper than this would be our stack's end, not its own.
pub(super) const DEEPEST: usize = 160;

#[derive(Clone, Debug)]
pub(super) enum Value {
    /// What was looked for in vain. It may be printed, tested and looped over; anything else is an error.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    Seq(Rc<Seq>),
    Dict(Rc<Dict>),
    Namespace(Rc<Namespace>),
    Macro(Rc<Macro>),
    Loop(Rc<Loop>),
    Function(Function),
    /// A method and what it is of.
    Method(Rc<(Value, Arc<str>)>),
}

/// Everything with items in a row.
#[derive(Debug)]
pub(super) struct Seq {
    pub(super) kind: SeqKind,
    pub(super) items: Vec<Value>,
    depth: usize,
}

#[derive(Debug, PartialEq)]
pub(super) enum SeqKind {
    List,
    Tuple,
    Range,
    /// `items()`, `keys()` or `values()` of a dict: has a length, but no indices.
    View(&'static str),
    /// What most filters give: no length, no indices, and empty once read.
    Generator(Cell<bool>),
}

/// Pairs in the order they came in.
#[derive(Debug)]
pub(super) struct Dict {
    pub(super) pairs: Vec<(Value, Value)>,
    depth: usize,
}

#[derive(Debug, Default)]
pub(super) struct Namespace(pub(super) RefCell<Vec<(Arc<str>, Value)>>);

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) def: Arc<MacroDef>,
    /// Weak: the scope holds the macro.
    pub(super) scope: Weak<Scope>,
}

/// The `loop` of a `for`.
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) items: Rc<Seq>,
    pub(super) at: Cell<usize>,
    pub(super) depth: usize,
    /// The arguments of the last `changed()`.
    pub(super) last: RefCell<Option<Vec<Value>>>,
    /// Where it may be called again.
    pub(super) again: Option<(Arc<For>, Weak<Scope>)>,
}

/// The functions every template has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    RaiseException,
    StrftimeNow,
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Str(text.into())
    }
}

impl Seq {
    fn depth_of(items: &[Value]) -> usize {
        1 + items.iter().map(Value::depth).max().unwrap_or(0)
    }
}

impl Value {
    /// A row of items, paid for.
    pub(super) fn seq(meter: &Meter, kind: SeqKind, items: Vec<Value>) -> Result<Value, Fault> {
        meter.bytes(items.len() * size_of::<Value>())?;
        let depth = Seq::depth_of(&items);
        nested(depth)?;
        Ok(Value::Seq(Rc::new(Seq { kind, items, depth })))
    }

    pub(super) fn list(meter: &Meter, items: Vec<Value>) -> Result<Value, Fault> {
        Value::seq(meter, SeqKind::List, items)
    }

    pub(super) fn tuple(meter: &Meter, items: Vec<Value>) -> Result<Value, Fault> {
        Value::seq(meter, SeqKind::Tuple, items)
    }

    pub(super) fn generator(meter: &Meter, items: Vec<Value>) -> Result<Value, Fault> {
        Value::seq(meter, SeqKind::Generator(Cell::new(false)), items)
    }

    /// Pairs of which every key is there once.
    pub(super) fn dict(meter: &Meter, pairs: Vec<(Value, Value)>) -> Result<Value, Fault> {
        meter.bytes(pairs.len() * 2 * size_of::<Value>())?;
        let depth = 1 + pairs.iter().map(|(k, v)| k.depth().max(v.depth())).max().unwrap_or(0);
        nested(depth)?;
        Ok(Value::Dict(Rc::new(Dict { pairs, depth })))
    }

    /// What the caller of the template gave.
    pub(super) fn from_json(meter: &Meter, json: &serde_json::Value) -> Result<Value, Fault> {
        meter.deeper(|| {
            Ok(match json {
                serde_json::Value::Null => Value::None,
                serde_json::Value::Bool(b) => Value::Bool(*b),
                serde_json::Value::Number(n) => match (n.as_i128(), n.as_f64()) {
                    (Some(n), _) => Value::Int(n),
                    (None, Some(n)) => Value::Float(n),
                    (None, None) => return Err(Fault::wrong(format!("{n} is too large a number"))),
                },
                serde_json::Value::String(text) => meter.text(text)?,
                serde_json::Value::Array(items) => {
                    let items = items.iter().map(|v| Value::from_json(meter, v)).collect::<Result<_, _>>()?;
                    Value::list(meter, items)?
                }
                serde_json::Value::Object(map) => {
                    let pair = |(k, v): (&String, _)| Ok((meter.text(k)?, Value::from_json(meter, v)?));
                    Value::dict(meter, map.iter().map(pair).collect::<Result<_, Fault>>()?)?
                }
            })
        })
    }

    fn depth(&self) -> usize {
        match self {
            Value::Seq(seq) => seq.depth,
            Value::Dict(dict) => dict.depth,
            // A bound method holds what it is of.
            Value::Method(method) => 1 + method.0.depth(),
            _ => 0,
        }
    }

    /// What Python calls its type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::Seq(seq) => match seq.kind {
                SeqKind::List => "list",
                SeqKind::Tuple => "tuple",
                SeqKind::Range => "range",
                SeqKind::View(name) => name,
                SeqKind::Generator(_) => "generator",
            },
            Value::Dict(_) => "dict",
            Value::Namespace(_) => "Namespace",
            Value::Macro(_) => "Macro",
            Value::Loop(_) => "LoopContext",
            Value::Function(_) | Value::Method(_) => "function",
        }
    }

    pub(super) fn truth(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(n) => *n != 0,
            Value::Float(n) => *n != 0.0,
            Value::Str(text) => !text.is_empty(),
            Value::Seq(seq) => matches!(seq.kind, SeqKind::Generator(_)) || !seq.items.is_empty(),
            Value::Dict(dict) => !dict.pairs.is_empty(),
            _ => true,
        }
    }

    /// A number, where a bool is 0 or 1.
    pub(super) fn int(&self) -> Option<i128> {
        match self {
            Value::Int(n) => Some(*n),
            Value::Bool(b) => Some(i128::from(*b)),
            _ => None,
        }
    }

    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Value::Float(n) => Some(*n),
            other => other.int().map(|n| n as f64),
        }
    }

    /// An error unless there is a value.
    pub(super) fn defined(&self) -> Result<(), Fault> {
        match self {
            Value::Undefined(what) => Err(Fault::wrong(what.to_string())),
            _ => Ok(()),
        }
    }

    /// Its items, as a loop meets them.
    pub(super) fn items(&self, meter: &Meter) -> Result<Rc<Seq>, Fault> {
        let items = match self {
            Value::Seq(seq) => {
                match &seq.kind {
                    SeqKind::Generator(read) if read.replace(true) => Vec::new(),
                    _ => return Ok(seq.clone()),
                }
            }
            Value::Undefined(_) => Vec::new(),
            Value::Str(text) => {
                meter.bytes(text.len() * size_of::<Value>())?;
                text.chars().map(|c| Value::from(c.encode_utf8(&mut [0; 4]) as &str)).collect()
            }
            Value::Dict(dict) => dict.pairs.iter().map(|(k, _)| k.clone()).collect(),
            other => return Err(Fault::wrong(format!("a {} has no items to go through", other.type_name()))),
        };
        match Value::list(meter, items)? {
            Value::Seq(seq) => Ok(seq),
            _ => unreachable!("a list is a row of items"),
        }
    }

    /// `len(self)`
    pub(super) fn len(&self, meter: &Meter) -> Result<usize, Fault> {
        match self {
            Value::Undefined(_) => Ok(0),
            Value::Str(text) => {
                meter.bytes(text.len())?;
                Ok(text.chars().count())
            }
            Value::Seq(seq) if !matches!(seq.kind, SeqKind::Generator(_)) => Ok(seq.items.len()),
            Value::Dict(dict) => Ok(dict.pairs.len()),
            other => Err(Fault::wrong(format!("a {} has no length", other.type_name()))),
        }
    }

    /// `str(self)`
    pub(super) fn write(&self, out: &mut Text) -> Result<(), Fault> {
        match self {
            Value::Undefined(_) => Ok(()),
            Value::Str(text) => out.push(text),
            other => other.repr(out),
        }
    }

    /// `str(self)`, without a copy where it is a string.
    pub(super) fn text(&self, meter: &Meter) -> Result<Arc<str>, Fault> {
        match self {
            Value::Str(text) => Ok(text.clone()),
            other => {
                let mut out = Text::new(meter);
                other.write(&mut out)?;
                Ok(out.finish())
            }
        }
    }

    /// `repr(self)`
    fn repr(&self, out: &mut Text) -> Result<(), Fault> {
        match self {
            Value::Undefined(_) => out.push("Undefined"),
            Value::None => out.push("None"),
            Value::Bool(b) => out.push(if *b { "True" } else { "False" }),
            Value::Int(n) => out.push(&n.to_string()),
            Value::Float(n) => out.push(&float_text(*n)),
            Value::Str(text) => repr_text(text, out),
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
            // Their text in Python has an address in it, which no template can mean.
            other => Err(Fault::wrong(format!("a {} cannot be printed", other.type_name()))),
        }
    }
}

fn nested(depth: usize) -> Result<(), Fault> {
    match depth {
        0..=DEEPEST => Ok(()),
        _ => Err(Fault::limit(format!("lists nested more than {DEEPEST} deep"))),
    }
}

fn repr_range(items: &[Value], out: &mut Text) -> Result<(), Fault> {
    let of = |i: usize| items.get(i).and_then(Value::int).unwrap_or(0);
    let step = if items.len() > 1 { of(1) - of(0) } else { 1 };
    let (start, stop) = if items.is_empty() { (0, 0) } else { (of(0), of(items.len() - 1) + step) };
    match step {
        1 => out.push(&format!("range({start}, {stop})")),
        _ => out.push(&format!("range({start}, {stop}, {step})")),
    }
}

/// `repr` of a float: the shortest digits that read back as the same, with an exponent below 1e-4 and from 1e16.
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

fn repr_text(text: &str, out: &mut Text) -> Result<(), Fault> {
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

/// Python's `isprintable` of a character, short of those that no version of Unicode has assigned yet.
fn is_printable(c: char) -> bool {
    let format = matches!(c as u32, 0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x180e | 0x200b..=0x200f | 0x202a..=0x202e
        | 0x2060..=0x206f | 0xfeff | 0xfff9..=0xfffb | 0xe000..=0xf8ff | 0xe0000..=0x10ffff);
    c == ' ' || !(c.is_control() || is_space(c) || format)
}

/// Python's `str.isspace` of a character, which is `\s` too.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}
