//! Values with Python's types, because templates print them and test their types. They are
//! immutable, except for namespaces.

use super::Fault;
use super::ast::{For, MacroDef};
use super::eval::Scope;
use super::meter::Meter;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Deepest nesting of lists and dicts. A deeper value would overflow our own stack.
pub(super) const MAX_DEPTH: usize = 160;

#[derive(Clone, Debug)]
pub(super) enum Value {
    /// An undefined value. It may be printed, tested and looped over; anything else is an error.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    /// A string that went through `safe` or `escape`. As in Jinja, strings added to it with `+` are
    /// HTML-escaped; no other string of a chat template is.
    Markup(Arc<str>),
    Seq(Rc<Seq>),
    Dict(Rc<Dict>),
    Namespace(Rc<Namespace>),
    Macro(Rc<Macro>),
    Loop(Rc<Loop>),
    Function(Function),
    /// `self`: the blocks of the template, which are not supported.
    Itself,
    /// A bound method: its object and name.
    Method(Rc<(Value, Arc<str>)>),
}

/// Any sequence of items.
#[derive(Debug)]
pub(super) struct Seq {
    pub(super) kind: SeqKind,
    pub(super) items: Vec<Value>,
    /// Whether it is a tuple made by `groupby`, whose items are also `grouper` and `list`.
    pub(super) grouped: bool,
    depth: usize,
}

#[derive(Debug, PartialEq)]
pub(super) enum SeqKind {
    List,
    Tuple,
    Range,
    /// `items()`, `keys()` or `values()` of a dict: has a length, but no indices.
    View(&'static str),
    /// Result of most filters: no length, no indices, and empty once read.
    Generator(Cell<bool>),
}

/// Pairs in insertion order.
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
    /// For a recursive loop: its definition and scope.
    pub(super) recursion: Option<(Arc<For>, Weak<Scope>)>,
}

/// The global functions of templates.
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
    /// A sequence whose items are charged.
    pub(super) fn seq(meter: &Meter, kind: SeqKind, items: Vec<Value>) -> Result<Value, Fault> {
        Value::row(meter, kind, items, false)
    }

    fn row(meter: &Meter, kind: SeqKind, items: Vec<Value>, grouped: bool) -> Result<Value, Fault> {
        meter.bytes(items.len() * size_of::<Value>())?;
        let depth = Seq::depth_of(&items);
        nested(depth)?;
        Ok(Value::Seq(Rc::new(Seq { kind, items, grouped, depth })))
    }

    /// A group of `groupby`.
    pub(super) fn group(meter: &Meter, name: Value, items: Vec<Value>) -> Result<Value, Fault> {
        Value::row(meter, SeqKind::Tuple, vec![name, Value::list(meter, items)?], true)
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

    /// A dict from pairs with distinct keys.
    pub(super) fn dict(meter: &Meter, pairs: Vec<(Value, Value)>) -> Result<Value, Fault> {
        meter.bytes(pairs.len() * 2 * size_of::<Value>())?;
        let depth = 1 + pairs.iter().map(|(k, v)| k.depth().max(v.depth())).max().unwrap_or(0);
        nested(depth)?;
        Ok(Value::Dict(Rc::new(Dict { pairs, depth })))
    }

    /// Converts the caller's input.
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
            // A bound method contains its object.
            Value::Method(method) => 1 + method.0.depth(),
            _ => 0,
        }
    }

    /// Python's name of its type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::Markup(_) => "Markup",
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
            Value::Itself => "TemplateReference",
            Value::Function(_) | Value::Method(_) => "function",
        }
    }

    pub(super) fn truth(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(n) => *n != 0,
            Value::Float(n) => *n != 0.0,
            Value::Str(text) | Value::Markup(text) => !text.is_empty(),
            Value::Seq(seq) => matches!(seq.kind, SeqKind::Generator(_)) || !seq.items.is_empty(),
            Value::Dict(dict) => !dict.pairs.is_empty(),
            _ => true,
        }
    }

    /// An integer; a bool is 0 or 1.
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

    /// The value with markup turned into a plain string.
    pub(super) fn plain(&self) -> Value {
        match self {
            Value::Markup(text) => Value::Str(text.clone()),
            other => other.clone(),
        }
    }

    /// The value as markup, if it is a string or a list of strings.
    pub(super) fn into_markup(self, meter: &Meter) -> Result<Value, Fault> {
        match self {
            Value::Str(text) => Ok(Value::Markup(text)),
            Value::Seq(seq) if seq.kind == SeqKind::List => {
                let items = seq.items.iter().map(|item| item.clone().into_markup(meter)).collect::<Result<_, _>>()?;
                Value::list(meter, items)
            }
            other => Ok(other),
        }
    }

    /// An error if the value is undefined.
    pub(super) fn defined(&self) -> Result<(), Fault> {
        match self {
            Value::Undefined(what) => Err(Fault::wrong(what.to_string())),
            _ => Ok(()),
        }
    }

    /// Its items, in the order of a loop.
    pub(super) fn items(&self, meter: &Meter) -> Result<Rc<Seq>, Fault> {
        let items = match self {
            Value::Seq(seq) => match &seq.kind {
                SeqKind::Generator(read) if read.replace(true) => Vec::new(),
                _ => return Ok(seq.clone()),
            },
            Value::Undefined(_) => Vec::new(),
            Value::Str(text) | Value::Markup(text) => {
                meter.bytes(text.len() * size_of::<Value>())?;
                text.chars().map(|c| Value::from(c.encode_utf8(&mut [0; 4]) as &str)).collect()
            }
            Value::Dict(dict) => dict.pairs.iter().map(|(k, _)| k.clone()).collect(),
            other => return Err(Fault::wrong(format!("a {} cannot be iterated", other.type_name()))),
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
            Value::Str(text) | Value::Markup(text) => {
                meter.bytes(text.len())?;
                Ok(text.chars().count())
            }
            Value::Seq(seq) if !matches!(seq.kind, SeqKind::Generator(_)) => Ok(seq.items.len()),
            Value::Dict(dict) => Ok(dict.pairs.len()),
            other => Err(Fault::wrong(format!("a {} has no length", other.type_name()))),
        }
    }
}

fn nested(depth: usize) -> Result<(), Fault> {
    match depth {
        0..=MAX_DEPTH => Ok(()),
        _ => Err(Fault::limit(format!("lists nested more than {MAX_DEPTH} deep"))),
    }
}
