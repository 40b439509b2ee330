//! Jinja, as chat templates use it: what Jinja2 does in the sandbox of transformers, with `trim_blocks` and `lstrip_blocks`.
//!
//! Our own, because a template is a program that came with a model: everything it makes is paid for from a [`meter`], which no
//! engine at hand does (a dozen `x ~ x` fill any memory), and because it must print what Python prints, to the letter.

mod args;
mod ast;
mod checks;
mod clock;
mod eval;
mod exec;
mod filters;
mod format;
mod functions;
mod json;
mod lex;
mod meter;
mod methods;
mod ops;
mod parse;
mod parse_expr;
mod print;
mod sequences;
mod strings;

mod value;

pub(crate) use clock::Clock;

use eval::{Interpreter, Scope};
use exec::Flow;
use meter::{Meter, Text};
use serde_json::{Map, Value as Json};
use std::rc::Rc;
use value::Value;

/// The longest template. The longest known is some 30 kB.
const LONGEST: usize = 1 << 20;
/// The longest text, besides [`PER_INPUT`] bytes for every byte of what was given.
const LONGEST_TEXT: usize = 4 << 20;
const PER_INPUT: usize = 8;

/// Why there is no text.
#[derive(Debug)]
pub(super) enum Fault {
    /// The template is not Jinja.
    Syntax { line: u32, what: String },
    /// The template says that these messages are not for it.
    Raised(String),
    /// It cannot go on.
    Wrong { line: Option<u32>, what: String },
    /// It costs too much.
    Limit { line: Option<u32>, what: String },
}

impl Fault {
    fn wrong(what: impl Into<String>) -> Fault {
        Fault::Wrong { line: None, what: what.into() }
    }

    fn limit(what: String) -> Fault {
        Fault::Limit { line: None, what }
    }

    /// With the line of the innermost statement.
    fn at(self, at: u32) -> Fault {
        match self {
            Fault::Wrong { line, what } => Fault::Wrong { line: line.or(Some(at)), what },
            Fault::Limit { line, what } => Fault::Limit { line: line.or(Some(at)), what },
            other => other,
        }
    }
}

/// A template, read.
#[derive(Debug)]
pub(super) struct Template {
    body: Vec<ast::Stmt>,
}

impl Template {
    pub(super) fn new(source: &str) -> Result<Template, Fault> {
        if source.len() > LONGEST {
            return Err(Fault::limit(format!("it is longer than {LONGEST} bytes")));
        }
        Ok(Template { body: parse::parse(source)? })
    }

    /// The text it makes of these names.
    pub(super) fn render(
        &self,
        names: &[(&str, &Json)],
        more: &Map<String, Json>,
        clock: Clock,
    ) -> Result<String, Fault> {
        let input: usize =
            names.iter().map(|(_, v)| weight(v, 0)).sum::<usize>() + more.values().map(|v| weight(v, 0)).sum::<usize>();
        let it = Interpreter::new(Meter::new(input as u64), clock);
        let scope = Rc::new(Scope::default());
        for (name, value) in names {
            scope.set(&(*name).into(), Value::from_json(&it.meter, value)?);
        }
        for (name, value) in more {
            scope.set(&name.as_str().into(), Value::from_json(&it.meter, value)?);
        }
        // What is set at the top is a scope of its own, so that what was given cannot be confused with it.
        let top = Scope::inside(&scope);
        let mut out = Text::at_most(&it.meter, LONGEST_TEXT.saturating_add(input.saturating_mul(PER_INPUT)));
        match it.run(&self.body, &top, &mut out)? {
            Flow::On => Ok(out.into_string()),
            _ => Err(Fault::wrong("break or continue outside of a loop")),
        }
    }
}

/// About how many bytes a value is.
fn weight(value: &Json, depth: usize) -> usize {
    let inner = match value {
        // What is deeper is refused when it is read.
        _ if depth > value::DEEPEST => 0,
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(|v| weight(v, depth + 1)).sum(),
        Json::Object(map) => map.iter().map(|(k, v)| k.len() + weight(v, depth + 1)).sum(),
        _ => 0,
    };
    inner + size_of::<Value>()
}
