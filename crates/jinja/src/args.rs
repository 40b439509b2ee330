//! Arguments of functions, methods, filters and tests.

use super::Fault;
use super::meter::Meter;
use super::value::Value;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Arc<str>, Value)>,
}

impl Args {
    /// The argument of each parameter, positional or by name.
    pub(super) fn bind<const N: usize>(self, of: &str, names: [&str; N]) -> Result<[Option<Value>; N], Fault> {
        if self.positional.len() > N {
            return Err(Fault::wrong(format!("{of} takes at most {N} arguments, not {}", self.positional.len())));
        }
        let mut bound = [const { None }; N];
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            match names.iter().position(|n| **n == *name) {
                Some(i) if bound[i].is_none() => bound[i] = Some(value),
                Some(_) => return Err(Fault::wrong(format!("{of} was given {name} twice"))),
                None => return Err(Fault::wrong(format!("{of} has no argument {name}"))),
            }
        }
        Ok(bound)
    }

    /// The arguments with markup turned into plain strings.
    pub(super) fn plain(self) -> Args {
        Args {
            positional: self.positional.iter().map(Value::plain).collect(),
            named: self.named.into_iter().map(|(name, value)| (name, value.plain())).collect(),
        }
    }

    pub(super) fn none(self, of: &str) -> Result<(), Fault> {
        self.bind(of, []).map(|[]| ())
    }
}

/// A required argument.
pub(super) fn required(value: Option<Value>, of: &str) -> Result<Value, Fault> {
    value.ok_or_else(|| Fault::wrong(format!("{of} was given too few arguments")))
}

/// A string; other types are an error even though they can be printed.
pub(super) fn text(value: Value, of: &str) -> Result<Arc<str>, Fault> {
    match value {
        Value::Str(text) | Value::Markup(text) => Ok(text),
        Value::Undefined(what) => Err(Fault::wrong(what.to_string())),
        other => Err(Fault::wrong(format!("{of} takes a str, not a {}", other.type_name()))),
    }
}

/// A string that may be absent or `none`.
pub(super) fn optional_text(value: Option<Value>, of: &str) -> Result<Option<Arc<str>>, Fault> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(value) => text(value, of).map(Some),
    }
}

/// The printed form of the value, or the default if there is none.
pub(super) fn printed(value: Option<Value>, default: &str, meter: &Meter) -> Result<Arc<str>, Fault> {
    value.map_or(Ok(default.into()), |v| v.text(meter))
}

pub(super) fn int(value: Option<Value>, default: i128, of: &str) -> Result<i128, Fault> {
    match value {
        None => Ok(default),
        Some(value) => {
            value.int().ok_or_else(|| Fault::wrong(format!("{of} takes a number, not a {}", value.type_name())))
        }
    }
}

pub(super) fn flag(value: Option<Value>, default: bool) -> bool {
    value.map_or(default, |v| v.truth())
}

/// A length; negative numbers become 0.
pub(super) fn size(n: i128) -> usize {
    usize::try_from(n.max(0)).unwrap_or(usize::MAX)
}
