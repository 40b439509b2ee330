//! Interpreter. Expressions are here, statements in `exec`.

use super::Fault;
use super::args::Args;
use super::ast::{Arguments, Expr};
use super::checks::test;
use super::clock::Clock;
use super::filters::filter;
use super::meter::{Meter, TextBuilder};
use super::methods::{self, Attribute};
use super::ops::{compare, item, operate, slice};
use super::value::{Function, Loop, Namespace, SeqKind, Value};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Variables of a scope and the enclosing scope.
#[derive(Debug, Default)]
pub(super) struct Scope {
    names: RefCell<Vec<(Arc<str>, Value)>>,
    parent: Option<Rc<Scope>>,
}

impl Scope {
    pub(super) fn inside(parent: &Rc<Scope>) -> Rc<Scope> {
        Rc::new(Scope { names: RefCell::default(), parent: Some(parent.clone()) })
    }

    pub(super) fn set(&self, name: &Arc<str>, value: Value) {
        let mut names = self.names.borrow_mut();
        match names.iter_mut().find(|(n, _)| n == name) {
            Some((_, slot)) => *slot = value,
            None => names.push((name.clone(), value)),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<Value> {
        let mut scope = Some(self);
        while let Some(at) = scope {
            if let Some((_, value)) = at.names.borrow().iter().find(|(n, _)| &**n == name) {
                return Some(value.clone());
            }
            scope = at.parent.as_deref();
        }
        None
    }
}

/// One rendering of a template.
pub(super) struct Interpreter {
    pub(super) meter: Meter,
    pub(super) clock: Clock,
    /// All namespaces of this rendering, cleared at its end because a namespace may contain itself.
    pub(super) namespaces: RefCell<Vec<Rc<Namespace>>>,
}

impl Drop for Interpreter {
    fn drop(&mut self) {
        let all = self.namespaces.take();
        for namespace in &all {
            namespace.0.take();
        }
    }
}

impl Interpreter {
    pub(super) fn new(meter: Meter, clock: Clock) -> Interpreter {
        Interpreter { meter, clock, namespaces: RefCell::default() }
    }

    pub(super) fn eval(&self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value, Fault> {
        self.meter.deeper(|| self.eval_here(expr, scope))
    }

    fn all(&self, exprs: &[Expr], scope: &Rc<Scope>) -> Result<Vec<Value>, Fault> {
        exprs.iter().map(|e| self.eval(e, scope)).collect()
    }

    fn eval_here(&self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value, Fault> {
        Ok(match expr {
            Expr::None => Value::None,
            Expr::Bool(b) => Value::Bool(*b),
            Expr::Int(n) => Value::Int(*n),
            Expr::Float(n) => Value::Float(*n),
            Expr::Str(text) => Value::Str(text.clone()),
            Expr::Name(name) => self.name(name, scope),
            Expr::Tuple(items) => Value::tuple(&self.meter, self.all(items, scope)?)?,
            Expr::List(items) => Value::list(&self.meter, self.all(items, scope)?)?,
            Expr::Dict(pairs) => self.dict(pairs, scope)?,
            Expr::Or(all) => self.first(all, true, scope)?,
            Expr::And(all) => self.first(all, false, scope)?,
            Expr::Not(value) => Value::Bool(!self.eval(value, scope)?.truth()),
            Expr::Compare(first, rest) => {
                let mut left = self.eval(first, scope)?;
                for (op, right) in rest {
                    let right = self.eval(right, scope)?;
                    if !compare(&self.meter, *op, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Value::Bool(true)
            }
            Expr::Chain(first, rest) => {
                let mut left = self.eval(first, scope)?;
                for (op, right) in rest {
                    left = operate(&self.meter, *op, &left, &self.eval(right, scope)?)?;
                }
                left
            }
            Expr::Concat(all) => {
                let mut out = TextBuilder::new(&self.meter);
                for part in all {
                    self.eval(part, scope)?.write(&mut out)?;
                }
                Value::Str(out.finish())
            }
            Expr::Negative(value) | Expr::Positive(value) => {
                let negative = matches!(expr, Expr::Negative(_));
                self.signed(negative, self.eval(value, scope)?)?
            }
            Expr::If(parts) => {
                let (test, then, otherwise) = &**parts;
                match (self.eval(test, scope)?.truth(), otherwise) {
                    (true, _) => self.eval(then, scope)?,
                    (false, Some(otherwise)) => self.eval(otherwise, scope)?,
                    (false, None) => Value::Undefined("an if without an else has no value".into()),
                }
            }
            Expr::Attr(value, name) => self.attribute(&self.eval(value, scope)?, name)?,
            Expr::Item(value, index) => {
                let value = self.eval(value, scope)?;
                self.item(&value, &self.eval(index, scope)?)?
            }
            Expr::Slice(value, parts) => {
                let value = self.eval(value, scope)?;
                let mut bounds = [const { None }; 3];
                for (bound, part) in bounds.iter_mut().zip(parts.iter()) {
                    *bound = part.as_ref().map(|p| self.eval(p, scope)).transpose()?;
                }
                slice(&self.meter, &value, bounds)?
            }
            Expr::Call(callee, arguments) => {
                let callee = self.eval(callee, scope)?;
                self.call(&callee, self.arguments(arguments, scope)?)?
            }
            Expr::Filter(value, name, arguments) => {
                let Some(value) = value else { return Err(Fault::wrong("a filter without a value")) };
                let value = self.eval(value, scope)?;
                filter(self, name, value, self.arguments(arguments, scope)?)?
            }
            Expr::Test(value, name, arguments) => {
                let value = self.eval(value, scope)?;
                Value::Bool(test(&self.meter, name, &value, self.arguments(arguments, scope)?)?)
            }
        })
    }

    fn name(&self, name: &Arc<str>, scope: &Rc<Scope>) -> Value {
        scope.get(name).unwrap_or_else(|| match &**name {
            "range" => Value::Function(Function::Range),
            "dict" => Value::Function(Function::Dict),
            "namespace" => Value::Function(Function::Namespace),
            "raise_exception" => Value::Function(Function::RaiseException),
            "self" => Value::Itself,
            "strftime_now" => Value::Function(Function::StrftimeNow),
            _ => Value::Undefined(format!("{name} is undefined").into()),
        })
    }

    /// The first value whose truth is `truth`, else the last value.
    fn first(&self, all: &[Expr], truth: bool, scope: &Rc<Scope>) -> Result<Value, Fault> {
        let mut value = Value::Bool(!truth);
        for expr in all {
            value = self.eval(expr, scope)?;
            if value.truth() == truth {
                break;
            }
        }
        Ok(value)
    }

    fn dict(&self, pairs: &[(Expr, Expr)], scope: &Rc<Scope>) -> Result<Value, Fault> {
        let mut out = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            self.insert(&mut out, self.eval(key, scope)?, self.eval(value, scope)?)?;
        }
        Value::dict(&self.meter, out)
    }

    /// Sets a key; a key that exists keeps its position.
    pub(super) fn insert(&self, pairs: &mut Vec<(Value, Value)>, key: Value, value: Value) -> Result<(), Fault> {
        if matches!(key, Value::Dict(_)) || matches!(&key, Value::Seq(seq) if seq.kind == SeqKind::List) {
            return Err(Fault::wrong(format!("a {} cannot be a key", key.type_name())));
        }
        for (k, slot) in pairs.iter_mut() {
            if super::ops::equal(&self.meter, k, &key)? {
                *slot = value;
                return Ok(());
            }
        }
        pairs.push((key, value));
        Ok(())
    }

    fn signed(&self, negative: bool, value: Value) -> Result<Value, Fault> {
        value.defined()?;
        let number = match &value {
            Value::Float(n) => Some(Value::Float(if negative { -n } else { *n })),
            other => other.int().and_then(|n| if negative { n.checked_neg() } else { Some(n) }).map(Value::Int),
        };
        number.ok_or_else(|| Fault::wrong(format!("a {} has no sign", value.type_name())))
    }

    pub(super) fn arguments(&self, arguments: &Arguments, scope: &Rc<Scope>) -> Result<Args, Fault> {
        let mut args = Args { positional: self.all(&arguments.positional, scope)?, named: Vec::new() };
        if let Some(spread) = &arguments.spread {
            args.positional.extend(self.eval(spread, scope)?.items(&self.meter)?.items.iter().cloned());
        }
        for (name, value) in &arguments.named {
            args.named.push((name.clone(), self.eval(value, scope)?));
        }
        if let Some(spread) = &arguments.spread_named {
            let Value::Dict(dict) = self.eval(spread, scope)? else { return Err(Fault::wrong("** needs a dict")) };
            for (key, value) in &dict.pairs {
                args.named.push((key.text(&self.meter)?, value.clone()));
            }
        }
        Ok(args)
    }

    /// `value.name`: an attribute, else an item.
    pub(super) fn attribute(&self, value: &Value, name: &Arc<str>) -> Result<Value, Fault> {
        value.defined()?;
        let found = self.attribute_only(value, name)?;
        match (&found, methods::attribute(value, name)) {
            (Value::Undefined(_), Attribute::Missing) => {
                Ok(item(&self.meter, value, &Value::Str(name.clone()))?.unwrap_or(found))
            }
            _ => Ok(found),
        }
    }

    /// `value|attr("name")`
    pub(super) fn attribute_only(&self, value: &Value, name: &Arc<str>) -> Result<Value, Fault> {
        value.defined()?;
        let found = match value {
            Value::Namespace(namespace) => namespace.0.borrow().iter().find(|(n, _)| n == name).map(|(_, v)| v.clone()),
            Value::Loop(of) => loop_attribute(of, name),
            Value::Seq(seq) if seq.grouped && &**name == "grouper" => seq.items.first().cloned(),
            Value::Seq(seq) if seq.grouped && &**name == "list" => seq.items.last().cloned(),
            Value::Macro(of) if &**name == "name" => Some(Value::Str(of.def.name.clone())),
            _ => None,
        };
        if let Some(found) = found {
            return Ok(found);
        }
        match methods::attribute(value, name) {
            Attribute::Method => Ok(Value::Method(Rc::new((value.clone(), name.clone())))),
            _ => Ok(Value::Undefined(format!("a {} has no attribute {name}", value.type_name()).into())),
        }
    }

    /// `value[index]`: an item, else an attribute.
    pub(super) fn item(&self, value: &Value, index: &Value) -> Result<Value, Fault> {
        value.defined()?;
        match (item(&self.meter, value, index)?, index) {
            (Some(found), _) => Ok(found),
            (None, Value::Str(name)) => self.attribute_only(value, name),
            (None, Value::Int(n)) => Ok(Value::Undefined(format!("a {} has no item {n}", value.type_name()).into())),
            (None, _) => Ok(Value::Undefined(format!("a {} has no such item", value.type_name()).into())),
        }
    }

    pub(super) fn call(&self, callee: &Value, args: Args) -> Result<Value, Fault> {
        match callee {
            Value::Method(method) => match &method.0 {
                Value::Loop(of) => self.loop_method(of, &method.1, args),
                value => methods::call(&self.meter, value, &method.1, args),
            },
            Value::Macro(of) => self.call_macro(of, args),
            Value::Loop(of) => self.call_loop(of, args),
            Value::Function(function) => self.call_function(*function, args),
            other => {
                other.defined()?;
                Err(Fault::wrong(format!("a {} cannot be called", other.type_name())))
            }
        }
    }

    fn loop_method(&self, of: &Loop, name: &str, args: Args) -> Result<Value, Fault> {
        if name == "cycle" {
            return match args.positional.len() {
                0 => Err(Fault::wrong("cycle needs values")),
                n => Ok(args.positional[of.at.get() % n].clone()),
            };
        }
        let mut changed = true;
        if let Some(last) = &*of.last.borrow() {
            changed = last.len() != args.positional.len();
            for (a, b) in last.iter().zip(&args.positional) {
                changed = changed || !super::ops::equal(&self.meter, a, b)?;
            }
        }
        of.last.replace(Some(args.positional));
        Ok(Value::Bool(changed))
    }
}

fn loop_attribute(of: &Loop, name: &str) -> Option<Value> {
    let (at, len) = (of.at.get(), of.items.items.len());
    let int = |n: usize| Some(Value::Int(n as i128));
    let item = |at: Option<usize>, what: &str| {
        let item = at.and_then(|at| of.items.items.get(at)).cloned();
        Some(item.unwrap_or_else(|| Value::Undefined(format!("there is no {what} item").into())))
    };
    match name {
        "index" => int(at + 1),
        "index0" => int(at),
        "revindex" => int(len - at),
        "revindex0" => int(len - at - 1),
        "first" => Some(Value::Bool(at == 0)),
        "last" => Some(Value::Bool(at + 1 == len)),
        "length" => int(len),
        "depth" => int(of.depth),
        "depth0" => int(of.depth - 1),
        "previtem" => item(at.checked_sub(1), "previous"),
        "nextitem" => item(Some(at + 1), "next"),
        _ => None,
    }
}
