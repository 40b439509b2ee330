//! Tests: the names that may follow `is`.

use super::Fault;
use super::args::{Args, required};
use super::ast::Comparison;
use super::meter::Meter;
use super::ops::compare;
use super::value::{SeqKind, Value};
use std::rc::Rc;

/// Jinja's own names, including those that are not supported here: any other name is a syntax
/// error.
pub(super) const NAMES: &str = "boolean callable defined divisibleby eq equalto escaped even false filter float ge \
    greaterthan gt in integer iterable le lessthan lower lt mapping ne none number odd sameas sequence string test true \
    undefined upper";

pub(super) fn test(meter: &Meter, name: &str, value: &Value, args: Args) -> Result<bool, Fault> {
    if matches!(value, Value::Markup(_)) {
        return if name == "escaped" { Ok(true) } else { test(meter, name, &value.plain(), args) };
    }
    let args = args.plain();
    let comparison = match name {
        "eq" | "equalto" | "==" => Some(Comparison::Eq),
        "ne" | "!=" => Some(Comparison::Ne),
        "lt" | "lessthan" | "<" => Some(Comparison::Lt),
        "le" | "<=" => Some(Comparison::Le),
        "gt" | "greaterthan" | ">" => Some(Comparison::Gt),
        "ge" | ">=" => Some(Comparison::Ge),
        "in" => Some(Comparison::In),
        _ => None,
    };
    if let Some(comparison) = comparison {
        let [other] = args.bind(name, ["other"])?;
        return compare(meter, comparison, value, &required(other, name)?);
    }
    if matches!(name, "divisibleby" | "sameas") {
        let [other] = args.bind(name, ["other"])?;
        let other = required(other, name)?;
        if name == "sameas" {
            return Ok(is_same(value, &other));
        }
        return match (value.int(), other.int()) {
            (_, Some(0)) => Err(Fault::wrong("a division by zero")),
            (Some(a), Some(b)) => Ok(a.checked_rem(b) == Some(0)),
            _ => Err(Fault::wrong("divisibleby takes whole numbers")),
        };
    }
    args.none(name)?;
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined(_)),
        "undefined" => matches!(value, Value::Undefined(_)),
        "none" => matches!(value, Value::None),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
        "iterable" => {
            let lists = matches!(value, Value::Str(_) | Value::Seq(_) | Value::Dict(_));
            lists || matches!(value, Value::Undefined(_) | Value::Loop(_) | Value::Itself)
        }
        "sequence" => match value {
            Value::Seq(seq) => matches!(seq.kind, SeqKind::List | SeqKind::Tuple | SeqKind::Range),
            other => matches!(other, Value::Str(_) | Value::Dict(_) | Value::Undefined(_)),
        },
        "callable" => {
            let functions = matches!(value, Value::Macro(_) | Value::Function(_) | Value::Method(_));
            functions || matches!(value, Value::Undefined(_) | Value::Loop(_))
        }
        "odd" | "even" => match value.int() {
            Some(n) => (n.rem_euclid(2) == 1) == (name == "odd"),
            None => return Err(Fault::wrong(format!("a {} is neither odd nor even", value.type_name()))),
        },
        "lower" | "upper" => {
            let text = value.text(meter)?;
            meter.bytes(text.len())?;
            let (lower, upper) = (text.chars().any(char::is_lowercase), text.chars().any(char::is_uppercase));
            lower != upper && lower == (name == "lower")
        }
        "escaped" => false,
        _ => return Err(Fault::wrong(format!("there is no test {name}"))),
    })
}

/// Python's `is`, as far as a template can observe it.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::None, Value::None) | (Value::Itself, Value::Itself) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Str(a), Value::Str(b)) => a == b,
        (Value::Seq(a), Value::Seq(b)) => Rc::ptr_eq(a, b),
        (Value::Dict(a), Value::Dict(b)) => Rc::ptr_eq(a, b),
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        _ => false,
    }
}
