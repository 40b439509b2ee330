//! Filters of lists.

use super::Fault;
use super::args::{Args, flag, int, printed, required, size};
use super::ast::Operator;
use super::checks::test;
use super::eval::Interpreter;
use super::meter::{Meter, TextBuilder};
use super::ops::{equal, operate, order};
use super::value::{SeqKind, Value};
use std::cmp::Ordering;

pub(super) fn filter(it: &Interpreter, name: &str, value: Value, args: Args) -> Result<Value, Fault> {
    let meter = &it.meter;
    match name {
        "list" => {
            args.none(name)?;
            Value::list(meter, value.items(meter)?.items.clone())
        }
        "join" => {
            let [between, attribute] = args.bind(name, ["d", "attribute"])?;
            let between = printed(between, "", meter)?;
            let mut out = TextBuilder::new(meter);
            for (i, item) in value.items(meter)?.items.iter().enumerate() {
                if i > 0 {
                    out.push(&between)?;
                }
                path(it, item, attribute.as_ref())?.write(&mut out)?;
            }
            Ok(Value::Str(out.finish()))
        }
        "first" | "last" => {
            args.none(name)?;
            if name == "last" && matches!(&value, Value::Seq(seq) if matches!(seq.kind, SeqKind::Generator(_))) {
                return Err(Fault::wrong("a generator has no last item; use |list"));
            }
            let items = value.items(meter)?;
            let item = if name == "first" { items.items.first() } else { items.items.last() };
            Ok(item.cloned().unwrap_or_else(|| Value::Undefined(format!("there is no {name} item").into())))
        }
        "reverse" => {
            args.none(name)?;
            match &value {
                Value::Str(text) => {
                    meter.bytes(text.len())?;
                    Ok(Value::Str(text.chars().rev().collect::<String>().into()))
                }
                other => Value::generator(meter, other.items(meter)?.items.iter().rev().cloned().collect()),
            }
        }
        "items" => {
            args.none(name)?;
            match &value {
                Value::Undefined(_) => Value::generator(meter, Vec::new()),
                Value::Dict(dict) => {
                    let pair = |(k, v): &(Value, Value)| Value::tuple(meter, vec![k.clone(), v.clone()]);
                    Value::generator(meter, dict.pairs.iter().map(pair).collect::<Result<_, _>>()?)
                }
                other => Err(Fault::wrong(format!("a {} has no pairs", other.type_name()))),
            }
        }
        "map" => map(it, &value, args),
        "select" | "reject" | "selectattr" | "rejectattr" => select(it, name, &value, args),
        "sort" => {
            let [reverse, cased, attribute] = args.bind(name, ["reverse", "case_sensitive", "attribute"])?;
            let items = value.items(meter)?.items.clone();
            let sorted = sort(
                it,
                items,
                Order { attribute: attribute.as_ref(), cased: flag(cased, false), reverse: flag(reverse, false) },
            )?;
            Value::list(meter, sorted)
        }
        "dictsort" => {
            let [cased, by, reverse] = args.bind(name, ["case_sensitive", "by", "reverse"])?;
            let Value::Dict(dict) = &value else {
                return Err(Fault::wrong(format!("a {} has no pairs to sort", value.type_name())));
            };
            let by = match printed(by, "key", meter)?.as_ref() {
                "key" => Value::Int(0),
                "value" => Value::Int(1),
                _ => return Err(Fault::wrong("dictsort: by key or value")),
            };
            let pair = |(k, v): &(Value, Value)| Value::tuple(meter, vec![k.clone(), v.clone()]);
            let pairs = dict.pairs.iter().map(pair).collect::<Result<_, _>>()?;
            Value::list(
                meter,
                sort(
                    it,
                    pairs,
                    Order { attribute: Some(&by), cased: flag(cased, false), reverse: flag(reverse, false) },
                )?,
            )
        }
        "min" | "max" => {
            let [cased, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
            let items = value.items(meter)?.items.clone();
            let none = Value::Undefined("there is no item, the list was empty".into());
            let sorted = sort(
                it,
                items,
                Order { attribute: attribute.as_ref(), cased: flag(cased, false), reverse: name == "max" },
            )?;
            Ok(sorted.into_iter().next().unwrap_or(none))
        }
        "unique" => {
            let [cased, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
            let cased = flag(cased, false);
            let (mut kept, mut keys) = (Vec::new(), Vec::<Value>::new());
            for item in &value.items(meter)?.items {
                let key = fold_case(meter, path(it, item, attribute.as_ref())?, cased)?;
                if !contains_value(meter, &keys, &key)? {
                    keys.push(key);
                    kept.push(item.clone());
                }
            }
            Value::generator(meter, kept)
        }
        "sum" => {
            let [attribute, start] = args.bind(name, ["attribute", "start"])?;
            let mut sum = start.unwrap_or(Value::Int(0));
            if let Value::Str(_) = sum {
                return Err(Fault::wrong("sum takes no strings; use join"));
            }
            for item in &value.items(meter)?.items {
                sum = operate(meter, Operator::Add, &sum, &path(it, item, attribute.as_ref())?)?;
            }
            Ok(sum)
        }
        "groupby" => {
            let [attribute, default, cased] = args.bind(name, ["attribute", "default", "case_sensitive"])?;
            let attribute = required(attribute, name)?;
            group(it, &value, (&attribute, flag(cased, false)), default)
        }
        "batch" | "slice" => {
            let [count, fill] = args.bind(name, [if name == "batch" { "linecount" } else { "slices" }, "fill_with"])?;
            let fill = fill.filter(|fill| !matches!(fill, Value::None));
            let count = size(int(Some(required(count, name)?), 0, name)?);
            if count == 0 {
                return Err(Fault::wrong(format!("{name} by 0")));
            }
            batch_or_slice(meter, &value.items(meter)?.items, (name == "batch", count), fill)
        }
        _ => Err(Fault::wrong(format!("there is no filter {name}"))),
    }
}

/// The attribute of an item, or the item itself if none is given: `a.b.0`, each step looked up like
/// `item[step]`.
fn path(it: &Interpreter, item: &Value, attribute: Option<&Value>) -> Result<Value, Fault> {
    match attribute {
        None | Some(Value::None) => Ok(item.clone()),
        Some(Value::Str(path)) => {
            let mut value = item.clone();
            for step in path.split('.') {
                let step = step.parse().map_or_else(|_| Value::from(step), Value::Int);
                value = it.item(&value, &step)?;
            }
            Ok(value)
        }
        Some(step) => it.item(item, step),
    }
}

fn map(it: &Interpreter, value: &Value, mut args: Args) -> Result<Value, Fault> {
    let meter = &it.meter;
    // As in Jinja, a false value has no items, `none` included.
    if !value.truth() {
        return Value::generator(meter, Vec::new());
    }
    let items = value.items(meter)?;
    let mut out = Vec::with_capacity(items.items.len());
    if args.positional.is_empty() {
        let [attribute, default] = args.bind("map", ["attribute", "default"])?;
        let attribute = required(attribute, "map")?;
        for item in &items.items {
            let found = path(it, item, Some(&attribute))?;
            out.push(match (&found, &default) {
                (Value::Undefined(_), Some(default)) => default.clone(),
                _ => found,
            });
        }
    } else {
        let name = args.positional.remove(0).text(meter)?;
        for item in &items.items {
            let args = Args { positional: args.positional.clone(), named: args.named.clone() };
            out.push(meter.deeper(|| super::filters::filter(it, &name, item.clone(), args))?);
        }
    }
    Value::generator(meter, out)
}

fn select(it: &Interpreter, name: &str, value: &Value, mut args: Args) -> Result<Value, Fault> {
    let meter = &it.meter;
    if !value.truth() {
        return Value::generator(meter, Vec::new());
    }
    let attribute = match name.ends_with("attr") {
        true if args.positional.is_empty() => return Err(Fault::wrong(format!("{name} needs an attribute"))),
        true => Some(args.positional.remove(0)),
        false => None,
    };
    let by = match args.positional.is_empty() {
        true => None,
        false => Some(args.positional.remove(0).text(meter)?),
    };
    let mut kept = Vec::new();
    for item in &value.items(meter)?.items {
        meter.steps(1)?;
        let tested = path(it, item, attribute.as_ref())?;
        let is = match &by {
            None => tested.truth(),
            Some(by) => {
                test(meter, by, &tested, Args { positional: args.positional.clone(), named: args.named.clone() })?
            }
        };
        if is == name.starts_with("select") {
            kept.push(item.clone());
        }
    }
    Value::generator(meter, kept)
}

fn fold_case(meter: &Meter, value: Value, cased: bool) -> Result<Value, Fault> {
    match value {
        Value::Str(text) if !cased => meter.text(&text.to_lowercase()),
        other => Ok(other),
    }
}

fn contains_value(meter: &Meter, values: &[Value], wanted: &Value) -> Result<bool, Fault> {
    for value in values {
        if equal(meter, value, wanted)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sort order of a list.
struct Order<'a> {
    attribute: Option<&'a Value>,
    cased: bool,
    reverse: bool,
}

fn sort(it: &Interpreter, items: Vec<Value>, by: Order) -> Result<Vec<Value>, Fault> {
    let Order { attribute, cased, reverse } = by;
    let meter = &it.meter;
    meter.bytes(items.len() * 2 * size_of::<Value>())?;
    let mut keyed = Vec::with_capacity(items.len());
    for item in items {
        keyed.push((keys(it, &item, attribute, cased)?, item));
    }
    let sorted = merge_sort(keyed, &|(a, _), (b, _)| compare_keys(meter, a, b, reverse))?;
    Ok(sorted.into_iter().map(|(_, item)| item).collect())
}

/// Compares two rows of sort keys. NaN, which has no order, comes last in both directions.
fn compare_keys(meter: &Meter, a: &[Value], b: &[Value], reverse: bool) -> Result<Ordering, Fault> {
    let nan = |value: &Value| matches!(value, Value::Float(n) if n.is_nan());
    for (a, b) in a.iter().zip(b) {
        let decided = match order(meter, a, b)? {
            // Reverses the comparison, not the items: Python's reverse keeps equal ones in their
            // order.
            Some(decided) if reverse => decided.reverse(),
            Some(decided) => decided,
            None => nan(a).cmp(&nan(b)),
        };
        if decided.is_ne() {
            return Ok(decided);
        }
    }
    Ok(Ordering::Equal)
}

/// A stable sort that stops at the first comparison that fails. The standard library's sort
/// requires a total order and may panic without one, which is the case for lists with NaN, or with
/// integers beside floats that cannot represent them.
fn merge_sort<T>(mut items: Vec<T>, compare: &impl Fn(&T, &T) -> Result<Ordering, Fault>) -> Result<Vec<T>, Fault> {
    if items.len() < 2 {
        return Ok(items);
    }
    let mut sorted = Vec::with_capacity(items.len());
    let right = items.split_off(items.len() / 2);
    let mut left = merge_sort(items, compare)?.into_iter().peekable();
    let mut right = merge_sort(right, compare)?.into_iter().peekable();
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        sorted.extend(if compare(a, b)?.is_le() { left.next() } else { right.next() });
    }
    sorted.extend(left.chain(right));
    Ok(sorted)
}

/// Sort keys of an item: one per attribute, separated by commas.
fn keys(it: &Interpreter, item: &Value, attribute: Option<&Value>, cased: bool) -> Result<Vec<Value>, Fault> {
    match attribute {
        Some(Value::Str(names)) => {
            let key = |name: &str| fold_case(&it.meter, path(it, item, Some(&name.into()))?, cased);
            names.split(',').map(key).collect()
        }
        other => Ok(vec![fold_case(&it.meter, path(it, item, other)?, cased)?]),
    }
}

fn group(it: &Interpreter, value: &Value, (by, cased): (&Value, bool), default: Option<Value>) -> Result<Value, Fault> {
    let meter = &it.meter;
    let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
    for item in sort(it, value.items(meter)?.items.clone(), Order { attribute: Some(by), cased, reverse: false })? {
        let mut name = path(it, &item, Some(by))?;
        if let (Value::Undefined(_), Some(default)) = (&name, &default) {
            name = default.clone();
        }
        let key = fold_case(meter, name.clone(), cased)?;
        match groups.last_mut() {
            Some((last, _, items)) if equal(meter, last, &key)? => items.push(item),
            _ => groups.push((key, name, vec![item])),
        }
    }
    let groups = groups.into_iter().map(|(_, name, items)| Value::group(meter, name, items));
    Value::list(meter, groups.collect::<Result<_, _>>()?)
}

/// Splits items into rows of `count` (`batch`), or into `count` columns (`slice`).
fn batch_or_slice(
    meter: &Meter,
    items: &[Value],
    (rows, count): (bool, usize),
    fill: Option<Value>,
) -> Result<Value, Fault> {
    let mut out = Vec::new();
    if rows {
        for row in items.chunks(count) {
            let mut row = row.to_vec();
            if let Some(fill) = &fill {
                meter.bytes((count - row.len()).saturating_mul(size_of::<Value>()))?;
                row.resize(count, fill.clone());
            }
            out.push(Value::list(meter, row)?);
        }
    } else {
        meter.bytes(count.saturating_mul(size_of::<Value>()))?;
        let (each, more) = (items.len() / count, items.len() % count);
        let mut at = 0;
        for i in 0..count {
            let end = at + each + usize::from(i < more);
            let mut column = items[at..end].to_vec();
            column.extend(fill.clone().filter(|_| i >= more));
            out.push(Value::list(meter, column)?);
            at = end;
        }
    }
    Value::generator(meter, out)
}
