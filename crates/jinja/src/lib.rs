//! Jinja for chat templates: renders what Jinja2 renders in the sandbox of transformers, with
//! `trim_blocks` and `lstrip_blocks`.
//!
//! A template is a program that comes with a model. Everything it creates is charged to a budget
//! (`meter.rs`), so that no template can fill the memory or run forever. Its output must equal
//! Python's character by character. The README compares another engine, minijinja.
//!
//! ```
//! use sconce_jinja::{Clock, Template};
//!
//! let template = Template::new("{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}{% endfor %}")?;
//! let messages = serde_json::json!([{"role": "user", "content": " Hi "}]);
//! let text = template.render(&[("messages", &messages)], &serde_json::Map::new(), Clock::utc_now())?;
//! assert_eq!(text, "<user>Hi");
//! # Ok::<(), sconce_jinja::Fault>(())
//! ```

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
mod numbers;
mod ops;
mod parse;
mod parse_expr;
mod print;
mod sequences;
mod strings;
mod value;

pub use clock::Clock;

use eval::{Interpreter, Scope};
use exec::Flow;
use meter::{Meter, TextBuilder};
use serde_json::{Map, Value as Json};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use value::Value;

/// Longest template in bytes. The longest known is some 30 kB.
const MAX_SOURCE: usize = 1 << 20;
/// Longest rendered text in bytes, plus [`PER_INPUT_BYTE`] bytes for every byte of input.
const MAX_TEXT: usize = 4 << 20;
const PER_INPUT_BYTE: usize = 8;

/// Why a template was not rendered.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The template is not valid Jinja.
    Syntax {
        /// Line, from 1.
        line: u32,
        /// What is wrong.
        what: String,
    },
    /// The template rejects its input (`raise_exception`).
    Raised(String),
    /// The template fails for this input.
    Wrong {
        /// Line, from 1, if known.
        line: Option<u32>,
        /// What went wrong.
        what: String,
    },
    /// The template needs too much time or memory.
    Limit {
        /// Line, from 1, if known.
        line: Option<u32>,
        /// Which limit was exceeded.
        what: String,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Syntax { line, what } => write!(f, "line {line}: {what}"),
            Fault::Raised(what) => f.write_str(what),
            Fault::Wrong { line: Some(line), what } | Fault::Limit { line: Some(line), what } => {
                write!(f, "line {line}: {what}")
            }
            Fault::Wrong { line: None, what } | Fault::Limit { line: None, what } => f.write_str(what),
        }
    }
}

impl std::error::Error for Fault {}

impl Fault {
    fn wrong(what: impl Into<String>) -> Fault {
        Fault::Wrong { line: None, what: what.into() }
    }

    fn limit(what: String) -> Fault {
        Fault::Limit { line: None, what }
    }

    /// Adds the line of the innermost statement.
    fn at(self, at: u32) -> Fault {
        match self {
            Fault::Wrong { line, what } => Fault::Wrong { line: line.or(Some(at)), what },
            Fault::Limit { line, what } => Fault::Limit { line: line.or(Some(at)), what },
            other => other,
        }
    }
}

/// Turns a panic into an error. A bug in this crate then fails one template only: parsing and
/// rendering leave no state behind.
fn catch_panic<T>(f: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    let bug = "internal error; please report it with the template";
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| Err(Fault::wrong(bug)))
}

/// A parsed template.
#[derive(Debug)]
pub struct Template {
    body: Vec<ast::Stmt>,
}

impl Template {
    /// Parses a template.
    pub fn new(source: &str) -> Result<Template, Fault> {
        if source.len() > MAX_SOURCE {
            return Err(Fault::limit(format!("it is longer than {MAX_SOURCE} bytes")));
        }
        catch_panic(|| Ok(Template { body: parse::parse(source)? }))
    }

    /// Renders the template with the variables `names` and `more`; `clock` is for templates that
    /// print the date.
    pub fn render(&self, names: &[(&str, &Json)], more: &Map<String, Json>, clock: Clock) -> Result<String, Fault> {
        catch_panic(|| self.run(names, more, clock))
    }

    fn run(&self, names: &[(&str, &Json)], more: &Map<String, Json>, clock: Clock) -> Result<String, Fault> {
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
        // Assignments at the top level go to their own scope, so that they are not confused with
        // the input.
        let top = Scope::inside(&scope);
        let mut out = TextBuilder::at_most(&it.meter, MAX_TEXT.saturating_add(input.saturating_mul(PER_INPUT_BYTE)));
        match it.run(&self.body, &top, &mut out)? {
            Flow::Next => Ok(out.into_string()),
            _ => Err(Fault::wrong("break or continue outside of a loop")),
        }
    }
}

/// Approximate size of a value in bytes.
fn weight(value: &Json, depth: usize) -> usize {
    let inner = match value {
        // Deeper values are refused when they are read.
        _ if depth > value::MAX_DEPTH => 0,
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(|v| weight(v, depth + 1)).sum(),
        Json::Object(map) => map.iter().map(|(k, v)| k.len() + weight(v, depth + 1)).sum(),
        _ => 0,
    };
    inner + size_of::<Value>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_panic_becomes_an_error() {
        let error = catch_panic(|| -> Result<(), Fault> { panic!("this test panics on purpose") }).unwrap_err();
        assert!(error.to_string().contains("internal error"), "{error}");
        assert_eq!(catch_panic(|| Ok(1)), Ok(1));
    }
}
