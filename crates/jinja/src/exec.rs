//! Interpreter: statements.

use super::Fault;
use super::args::Args;
use super::ast::{Expr, For, Kind, MacroDef, Stmt, Target};
use super::eval::{Interpreter, Scope};
use super::filters::filter;
use super::meter::TextBuilder;
use super::value::{Loop, Macro, Seq, Value};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Control flow after a statement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Flow {
    Next,
    Break,
    Continue,
}

impl Interpreter {
    pub(super) fn run(&self, body: &[Stmt], scope: &Rc<Scope>, out: &mut TextBuilder) -> Result<Flow, Fault> {
        self.meter.deeper(|| {
            for stmt in body {
                match self.statement(&stmt.kind, scope, out).map_err(|fault| fault.at(stmt.line))? {
                    Flow::Next => {}
                    flow => return Ok(flow),
                }
            }
            Ok(Flow::Next)
        })
    }

    /// Renders a body into a string.
    fn capture(&self, body: &[Stmt], scope: &Rc<Scope>) -> Result<Value, Fault> {
        let mut text = TextBuilder::new(&self.meter);
        match self.run(body, scope, &mut text)? {
            Flow::Next => Ok(Value::Str(text.finish())),
            _ => Err(Fault::wrong("break or continue outside of a loop")),
        }
    }

    fn statement(&self, kind: &Kind, scope: &Rc<Scope>, out: &mut TextBuilder) -> Result<Flow, Fault> {
        self.meter.steps(1)?;
        match kind {
            Kind::Data(text) => out.push(text)?,
            Kind::Print(value) => self.eval(value, scope)?.write(out)?,
            Kind::If(branches) => {
                for (test, body) in branches {
                    let taken = match test {
                        Some(test) => self.eval(test, scope)?.truth(),
                        None => true,
                    };
                    if taken {
                        return self.run(body, scope, out);
                    }
                }
            }
            Kind::For(of) => {
                let items = self.eval(&of.items, scope)?;
                self.for_each((of, 1), &items, scope, out)?;
            }
            Kind::Set(target, value) => {
                let value = self.eval(value, scope)?;
                self.assign(target, value, scope)?;
            }
            Kind::SetBlock(target, apply_filters, body) => {
                let text = self.capture(body, &Scope::inside(scope))?;
                let text = match apply_filters {
                    Some(apply_filters) => self.apply_filters(apply_filters, text, scope)?,
                    None => text,
                };
                self.assign(target, text, scope)?;
            }
            Kind::With(pairs, body) => {
                let inner = Scope::inside(scope);
                for (target, value) in pairs {
                    // Values are evaluated in the enclosing scope, so they cannot see each other.
                    self.assign(target, self.eval(value, scope)?, &inner)?;
                }
                return self.run(body, &inner, out);
            }
            Kind::FilterBlock(apply_filters, body) => {
                let text = self.capture(body, &Scope::inside(scope))?;
                self.apply_filters(apply_filters, text, scope)?.write(out)?;
            }
            Kind::Macro(def) => scope.set(&def.name, closure(def, scope)),
            Kind::CallBlock(call, def) => {
                let Expr::Call(callee, arguments) = call else { return Err(Fault::wrong("{% call %} needs a call")) };
                let callee = self.eval(callee, scope)?;
                let mut args = self.arguments(arguments, scope)?;
                args.named.push(("caller".into(), closure(def, scope)));
                self.call(&callee, args)?.write(out)?;
            }
            Kind::Generation(body) => match self.run(body, &Scope::inside(scope), out)? {
                Flow::Next => {}
                _ => return Err(Fault::wrong("break or continue outside of a loop")),
            },
            Kind::Break => return Ok(Flow::Break),
            Kind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    /// Applies filters to the text of a block.
    fn apply_filters(&self, expr: &Expr, text: Value, scope: &Rc<Scope>) -> Result<Value, Fault> {
        let Expr::Filter(value, name, arguments) = expr else { return Err(Fault::wrong("a block needs a filter")) };
        let value = match value {
            Some(inner) => self.meter.deeper(|| self.apply_filters(inner, text, scope))?,
            None => text,
        };
        filter(self, name, value, self.arguments(arguments, scope)?)
    }

    fn assign(&self, target: &Target, value: Value, scope: &Rc<Scope>) -> Result<(), Fault> {
        match target {
            Target::Name(name) => scope.set(name, value),
            Target::Attr(name, attribute) => match scope.get(name) {
                Some(Value::Namespace(namespace)) => self.set_attribute(&namespace, attribute, value)?,
                _ => return Err(Fault::wrong(format!("{name}.{attribute} cannot be set: {name} is no namespace"))),
            },
            Target::Tuple(targets) => {
                value.defined()?;
                let items = value.items(&self.meter)?;
                if items.items.len() != targets.len() {
                    let (have, want) = (items.items.len(), targets.len());
                    return Err(Fault::wrong(format!("cannot unpack {have} values into {want} names")));
                }
                for (target, value) in targets.iter().zip(&items.items) {
                    self.assign(target, value.clone(), scope)?;
                }
            }
        }
        Ok(())
    }

    /// Runs a loop; `depth` counts the recursive loops around it.
    fn for_each(
        &self,
        (of, depth): (&Arc<For>, usize),
        items: &Value,
        scope: &Rc<Scope>,
        out: &mut TextBuilder,
    ) -> Result<(), Fault> {
        let mut items = items.items(&self.meter)?;
        let mut lazy = None;
        if let Some(test) = &of.test {
            if of.uses_loop {
                items = self.filtered(of, test, &items, scope)?;
            } else {
                lazy = Some(test);
            }
        }
        let looped = of.uses_loop.then(|| {
            let recursion = of.recursive.then(|| (of.clone(), Rc::downgrade(scope)));
            Rc::new(Loop { items: items.clone(), at: Cell::new(0), depth, last: RefCell::default(), recursion })
        });
        let mut met = false;
        for (at, item) in items.items.iter().enumerate() {
            self.meter.steps(1)?;
            let inner = Scope::inside(scope);
            self.assign(&of.target, item.clone(), &inner)?;
            if let Some(test) = lazy
                && !self.eval(test, &inner)?.truth()
            {
                continue;
            }
            if let Some(looped) = &looped {
                looped.at.set(at);
                inner.set(&"loop".into(), Value::Loop(looped.clone()));
            }
            met = true;
            if self.run(&of.body, &inner, out)? == Flow::Break {
                break;
            }
        }
        if !met {
            match self.run(&of.otherwise, &Scope::inside(scope), out)? {
                Flow::Next => {}
                _ => return Err(Fault::wrong("break or continue outside of a loop")),
            }
        }
        Ok(())
    }

    fn filtered(&self, of: &For, test: &Expr, items: &Seq, scope: &Rc<Scope>) -> Result<Rc<Seq>, Fault> {
        let mut kept = Vec::new();
        for item in &items.items {
            let inner = Scope::inside(scope);
            self.assign(&of.target, item.clone(), &inner)?;
            if self.eval(test, &inner)?.truth() {
                kept.push(item.clone());
            }
        }
        Value::list(&self.meter, kept)?.items(&self.meter)
    }

    /// `loop(items)` in a recursive loop.
    pub(super) fn call_loop(&self, of: &Loop, args: Args) -> Result<Value, Fault> {
        let [items] = args.bind("loop", ["iterable"])?;
        let Some((recursion, scope)) = &of.recursion else { return Err(Fault::wrong("this loop is not recursive")) };
        let scope = scope.upgrade().ok_or_else(|| Fault::wrong("a loop was called after its end"))?;
        let mut text = TextBuilder::new(&self.meter);
        let items = super::args::required(items, "loop")?;
        self.meter.deeper(|| self.for_each((recursion, of.depth + 1), &items, &scope, &mut text))?;
        Ok(Value::Str(text.finish()))
    }

    pub(super) fn call_macro(&self, of: &Macro, args: Args) -> Result<Value, Fault> {
        let def = &of.def;
        let parent = of.scope.upgrade();
        let parent = parent.ok_or_else(|| Fault::wrong(format!("{} was called outside of its scope", def.name)))?;
        let scope = Scope::inside(&parent);
        let mut named = args.named;
        let mut given = args.positional.into_iter();
        let mut absent = Vec::new();
        for (name, default) in &def.parameters {
            let by_name = named.iter().position(|(n, _)| n == name);
            match (given.next(), by_name) {
                (Some(_), Some(_)) => return Err(Fault::wrong(format!("{} was given {name} twice", def.name))),
                (Some(value), None) => scope.set(name, value),
                (None, Some(i)) => scope.set(name, named.remove(i).1),
                (None, None) => absent.push((name, default)),
            }
        }
        for (name, default) in absent {
            let value = match default {
                Some(default) => self.eval(default, &scope)?,
                None => Value::Undefined(format!("{} was not given {name}", def.name).into()),
            };
            scope.set(name, value);
        }
        let caller = named.iter().position(|(n, _)| &**n == "caller").map(|i| named.remove(i).1);
        if def.takes_caller && !def.parameters.iter().any(|(n, _)| &**n == "caller") {
            let none = || Value::Undefined("no caller is defined".into());
            scope.set(&"caller".into(), caller.unwrap_or_else(none));
        } else if caller.is_some() {
            return Err(Fault::wrong(format!("{} does not use a caller", def.name)));
        }
        if def.takes_kwargs {
            let pairs = named.into_iter().map(|(k, v)| (Value::Str(k), v)).collect();
            scope.set(&"kwargs".into(), Value::dict(&self.meter, pairs)?);
        } else if let Some((name, _)) = named.first() {
            return Err(Fault::wrong(format!("{} has no parameter {name}", def.name)));
        }
        let rest: Vec<Value> = given.collect();
        if def.takes_varargs {
            scope.set(&"varargs".into(), Value::tuple(&self.meter, rest)?);
        } else if !rest.is_empty() {
            let most = def.parameters.len();
            return Err(Fault::wrong(format!("{} takes at most {most} arguments", def.name)));
        }
        self.capture(&def.body, &scope)
    }
}

fn closure(def: &Arc<MacroDef>, scope: &Rc<Scope>) -> Value {
    Value::Macro(Rc::new(Macro { def: def.clone(), scope: Rc::downgrade(scope) }))
}
