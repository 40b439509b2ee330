//! Python's operators, comparisons, indexing and slices.

use super::Fault;
use super::ast::{Comparison, Operator};
use super::format::percent;
use super::meter::{Meter, TextBuilder};
use super::numbers::div_mod;
use super::value::{SeqKind, Value};
use std::cmp::Ordering;

/// `a == b`
pub(super) fn equal(meter: &Meter, a: &Value, b: &Value) -> Result<bool, Fault> {
    meter.steps(1)?;
    Ok(match (a, b) {
        (Value::Markup(_), _) | (_, Value::Markup(_)) => return equal(meter, &a.plain(), &b.plain()),
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) | (Value::Itself, Value::Itself) => {
            true
        }
        (Value::Str(a), Value::Str(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            meter.bytes(a.len())?;
            a == b
        }
        (Value::Seq(a), Value::Seq(b)) => {
            if a.kind != b.kind || matches!(a.kind, SeqKind::Generator(_)) || a.items.len() != b.items.len() {
                return Ok(std::rc::Rc::ptr_eq(a, b));
            }
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal(meter, a, b)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.pairs.len() != b.pairs.len() {
                return Ok(false);
            }
            for (key, value) in &a.pairs {
                match b.get(meter, key)? {
                    Some(other) if equal(meter, value, other)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Namespace(a), Value::Namespace(b)) => std::rc::Rc::ptr_eq(a, b),
        (Value::Macro(a), Value::Macro(b)) => std::rc::Rc::ptr_eq(a, b),
        (Value::Loop(a), Value::Loop(b)) => std::rc::Rc::ptr_eq(a, b),
        (Value::Function(a), Value::Function(b)) => a == b,
        _ => match (a.int(), b.int()) {
            (Some(a), Some(b)) => a == b,
            _ => matches!((a.number(), b.number()), (Some(a), Some(b)) if a == b),
        },
    })
}

/// The order of two values; `None` if they cannot be ordered.
pub(super) fn order(meter: &Meter, a: &Value, b: &Value) -> Result<Option<Ordering>, Fault> {
    meter.steps(1)?;
    a.defined()?;
    b.defined()?;
    match (a, b) {
        (Value::Markup(_), _) | (_, Value::Markup(_)) => order(meter, &a.plain(), &b.plain()),
        (Value::Str(a), Value::Str(b)) => {
            meter.bytes(a.len().min(b.len()))?;
            Ok(Some(a.cmp(b)))
        }
        (Value::Seq(x), Value::Seq(y)) if x.kind == y.kind && matches!(x.kind, SeqKind::List | SeqKind::Tuple) => {
            for (a, b) in x.items.iter().zip(&y.items) {
                if !equal(meter, a, b)? {
                    return order(meter, a, b);
                }
            }
            Ok(Some(x.items.len().cmp(&y.items.len())))
        }
        _ => match (a.int(), b.int(), a.number(), b.number()) {
            (Some(a), Some(b), ..) => Ok(Some(a.cmp(&b))),
            (.., Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
            _ => Err(Fault::wrong(format!("a {} and a {} cannot be compared", a.type_name(), b.type_name()))),
        },
    }
}

pub(super) fn compare(meter: &Meter, op: Comparison, a: &Value, b: &Value) -> Result<bool, Fault> {
    Ok(match op {
        Comparison::Eq => equal(meter, a, b)?,
        Comparison::Ne => !equal(meter, a, b)?,
        Comparison::In => contains(meter, b, a)?,
        Comparison::NotIn => !contains(meter, b, a)?,
        Comparison::Lt => order(meter, a, b)? == Some(Ordering::Less),
        Comparison::Gt => order(meter, a, b)? == Some(Ordering::Greater),
        Comparison::Le => order(meter, a, b)?.is_some_and(Ordering::is_le),
        Comparison::Ge => order(meter, a, b)?.is_some_and(Ordering::is_ge),
    })
}

fn contains(meter: &Meter, whole: &Value, part: &Value) -> Result<bool, Fault> {
    match whole {
        Value::Str(text) | Value::Markup(text) => match part {
            Value::Str(part) | Value::Markup(part) => {
                meter.bytes(text.len())?;
                Ok(text.contains(&**part))
            }
            other => Err(Fault::wrong(format!("a {} cannot be in a str", other.type_name()))),
        },
        Value::Dict(dict) => Ok(dict.get(meter, part)?.is_some()),
        other => {
            for item in &other.items(meter)?.items {
                if equal(meter, item, part)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

impl super::value::Dict {
    /// The value of a key, by linear search: messages and schemas have few keys, and the search is
    /// charged.
    pub(super) fn get(&self, meter: &Meter, key: &Value) -> Result<Option<&Value>, Fault> {
        if matches!(key, Value::Dict(_)) || matches!(key, Value::Seq(seq) if seq.kind == SeqKind::List) {
            return Err(Fault::wrong(format!("a {} cannot be a key", key.type_name())));
        }
        if let Value::Str(key) | Value::Markup(key) = key {
            meter.steps(self.pairs.len() / 16)?;
            return Ok(self
                .pairs
                .iter()
                .find(|(k, _)| matches!(k, Value::Str(k) | Value::Markup(k) if k == key))
                .map(|(_, v)| v));
        }
        for (k, v) in &self.pairs {
            if equal(meter, k, key)? {
                return Ok(Some(v));
            }
        }
        Ok(None)
    }
}

pub(super) fn operate(meter: &Meter, op: Operator, a: &Value, b: &Value) -> Result<Value, Fault> {
    a.defined()?;
    if let (Operator::Rem, Value::Str(pattern)) = (op, a) {
        return percent(meter, pattern, b);
    }
    b.defined()?;
    match (op, a, b) {
        (Operator::Add, Value::Markup(_), Value::Str(_) | Value::Markup(_))
        | (Operator::Add, Value::Str(_), Value::Markup(_)) => {
            let mut text = TextBuilder::new(meter);
            for part in [a, b] {
                match part {
                    Value::Markup(part) => text.push(part)?,
                    part => escape(&part.text(meter)?, &mut text)?,
                }
            }
            return Ok(Value::Markup(text.finish()));
        }
        (Operator::Mul, Value::Markup(_), _) | (Operator::Mul, _, Value::Markup(_)) => {
            return operate(meter, op, &a.plain(), &b.plain())?.into_markup(meter);
        }
        (Operator::Rem, Value::Markup(_), _) => return Err(Fault::wrong("% on a safe string is not supported")),
        (Operator::Add, Value::Str(a), Value::Str(b)) => {
            let mut text = TextBuilder::new(meter);
            text.push(a)?;
            text.push(b)?;
            return Ok(Value::Str(text.finish()));
        }
        (Operator::Add, Value::Seq(x), Value::Seq(y)) if x.kind == y.kind => {
            meter.bytes((x.items.len() + y.items.len()) * size_of::<Value>())?;
            let items = || x.items.iter().chain(&y.items).cloned().collect();
            match x.kind {
                SeqKind::List => return Value::list(meter, items()),
                SeqKind::Tuple => return Value::tuple(meter, items()),
                _ => {}
            }
        }
        (Operator::Mul, Value::Str(_) | Value::Seq(_), n) if n.int().is_some() => return repeat(meter, a, n),
        (Operator::Mul, n, Value::Str(_) | Value::Seq(_)) if n.int().is_some() => return repeat(meter, b, n),
        _ => {}
    }
    let unfit =
        || Fault::wrong(format!("unsupported operands: a {} and a {} with {}", a.type_name(), b.type_name(), sign(op)));
    if let (Some(x), Some(y)) = (a.int(), b.int())
        && op != Operator::Div
        && !(op == Operator::Pow && y < 0)
    {
        if y == 0 && matches!(op, Operator::FloorDiv | Operator::Rem) {
            return Err(Fault::wrong("a division by zero"));
        }
        let result = match op {
            Operator::Add => x.checked_add(y),
            Operator::Sub => x.checked_sub(y),
            Operator::Mul => x.checked_mul(y),
            Operator::FloorDiv => {
                x.checked_div_euclid(y).map(|q| if y < 0 && x.rem_euclid(y) != 0 { q - 1 } else { q })
            }
            Operator::Rem => x.checked_rem(y).map(|r| if r != 0 && (r < 0) != (y < 0) { r + y } else { r }),
            Operator::Pow => u32::try_from(y).ok().and_then(|y| x.checked_pow(y)),
            Operator::Div => None,
        };
        return result.map(Value::Int).ok_or_else(|| Fault::wrong("a number became too large"));
    }
    let (Some(x), Some(y)) = (a.number(), b.number()) else { return Err(unfit()) };
    if y == 0.0 && matches!(op, Operator::Div | Operator::FloorDiv | Operator::Rem)
        || (x == 0.0 && y < 0.0 && op == Operator::Pow)
    {
        return Err(Fault::wrong("a division by zero"));
    }
    Ok(Value::Float(match op {
        Operator::Add => x + y,
        Operator::Sub => x - y,
        Operator::Mul => x * y,
        Operator::Div => x / y,
        Operator::FloorDiv => div_mod(x, y).0,
        Operator::Rem => div_mod(x, y).1,
        Operator::Pow => match x.powf(y) {
            n if x.is_finite() && y.is_finite() && !n.is_finite() => {
                return Err(Fault::wrong("a power is too large, or no real number"));
            }
            n => n,
        },
    }))
}

/// Escapes the special characters of HTML.
pub(super) fn escape(text: &str, out: &mut TextBuilder) -> Result<(), Fault> {
    for c in text.chars() {
        match c {
            '&' => out.push("&amp;")?,
            '<' => out.push("&lt;")?,
            '>' => out.push("&gt;")?,
            '\'' => out.push("&#39;")?,
            '"' => out.push("&#34;")?,
            c => out.char(c)?,
        }
    }
    Ok(())
}

fn sign(op: Operator) -> &'static str {
    match op {
        Operator::Add => "+",
        Operator::Sub => "-",
        Operator::Mul => "*",
        Operator::Div => "/",
        Operator::FloorDiv => "//",
        Operator::Rem => "%",
        Operator::Pow => "**",
    }
}

fn repeat(meter: &Meter, value: &Value, times: &Value) -> Result<Value, Fault> {
    let times = usize::try_from(times.int().unwrap_or(0).max(0)).unwrap_or(usize::MAX);
    match value {
        Value::Str(text) => {
            let mut out = TextBuilder::new(meter);
            out.times(text, times)?;
            Ok(Value::Str(out.finish()))
        }
        Value::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple) => {
            let whole = seq.items.len().saturating_mul(times);
            meter.bytes(whole.saturating_mul(size_of::<Value>()))?;
            let items = seq.items.iter().cycle().take(whole).cloned().collect();
            if seq.kind == SeqKind::List { Value::list(meter, items) } else { Value::tuple(meter, items) }
        }
        other => Err(Fault::wrong(format!("a {} cannot be multiplied", other.type_name()))),
    }
}

/// `value[index]`; `None` if it does not exist.
pub(super) fn item(meter: &Meter, value: &Value, index: &Value) -> Result<Option<Value>, Fault> {
    let place = |len: usize| {
        let index = index.int()?;
        usize::try_from(if index < 0 { index + len as i128 } else { index }).ok().filter(|i| *i < len)
    };
    match value {
        Value::Dict(dict) => Ok(dict.get(meter, index).ok().flatten().cloned()),
        Value::Seq(seq) if !matches!(seq.kind, SeqKind::Generator(_) | SeqKind::View(_)) => {
            Ok(place(seq.items.len()).map(|i| seq.items[i].clone()))
        }
        Value::Markup(_) if index.int().is_some() => {
            item(meter, &value.plain(), index)?.map(|found| found.into_markup(meter)).transpose()
        }
        Value::Str(text) if index.int().is_some() => {
            meter.bytes(text.len())?;
            let found = place(text.chars().count()).and_then(|i| text.chars().nth(i));
            Ok(found.map(|c| Value::from(c.encode_utf8(&mut [0; 4]) as &str)))
        }
        _ => Ok(None),
    }
}

/// `value[start:stop:step]`
pub(super) fn slice(meter: &Meter, value: &Value, parts: [Option<Value>; 3]) -> Result<Value, Fault> {
    let mut bounds = [None; 3];
    for (bound, part) in bounds.iter_mut().zip(&parts) {
        match part {
            None | Some(Value::None) => {}
            Some(part) => match part.int() {
                Some(n) => *bound = Some(n),
                None => return Err(Fault::wrong(format!("a {} cannot bound a slice", part.type_name()))),
            },
        }
    }
    value.defined()?;
    match value {
        Value::Markup(_) => slice(meter, &value.plain(), parts)?.into_markup(meter),
        Value::Str(text) => {
            meter.bytes(text.len() * 5)?;
            let chars: Vec<char> = text.chars().collect();
            let picked: String = slice_indices(chars.len(), bounds)?.map(|i| chars[i]).collect();
            Ok(Value::Str(picked.into()))
        }
        Value::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple | SeqKind::Range) => {
            let items = slice_indices(seq.items.len(), bounds)?.map(|i| seq.items[i].clone()).collect();
            match seq.kind {
                SeqKind::Tuple => Value::tuple(meter, items),
                SeqKind::Range => Value::seq(meter, SeqKind::Range, items),
                _ => Value::list(meter, items),
            }
        }
        // Undefined, as any item that does not exist.
        other => Ok(Value::Undefined(format!("a {} cannot be sliced", other.type_name()).into())),
    }
}

/// The indices of a slice of a sequence of length `len`.
fn slice_indices(len: usize, [start, stop, step]: [Option<i128>; 3]) -> Result<impl Iterator<Item = usize>, Fault> {
    let len = len as i128;
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(Fault::wrong("a slice cannot have steps of 0"));
    }
    let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |n: i128| (if n < 0 { n.saturating_add(len) } else { n }).clamp(lowest, highest);
    let start = start.map_or(if step > 0 { lowest } else { highest }, clamp);
    let stop = stop.map_or(if step > 0 { highest } else { lowest }, clamp);
    let span = if step > 0 { stop - start } else { start - stop };
    let stride = step.unsigned_abs().min(len as u128 + 1) as i128;
    let count = if span <= 0 { 0 } else { (span + stride - 1) / stride };
    Ok((0..count).map(move |i| (if step > 0 { start + i * stride } else { start - i * stride }) as usize))
}
