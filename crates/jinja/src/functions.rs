//! The global functions of templates.

use super::Fault;
use super::args::{Args, int, required, text};
use super::clock::strftime;
use super::eval::Interpreter;
use super::value::{Function, Namespace, SeqKind, Value};
use std::rc::Rc;
use std::sync::Arc;

/// Most items of a `range`, as in the sandbox of transformers.
const MAX_RANGE: i128 = 100_000;

impl Interpreter {
    pub(super) fn call_function(&self, function: Function, args: Args) -> Result<Value, Fault> {
        match function {
            Function::RaiseException => {
                let [message] = args.bind("raise_exception", ["message"])?;
                Err(Fault::Raised(required(message, "raise_exception")?.text(&self.meter)?.to_string()))
            }
            Function::StrftimeNow => {
                let [format] = args.bind("strftime_now", ["format"])?;
                let format = text(required(format, "strftime_now")?, "strftime_now")?;
                self.meter.text(&strftime(self.clock, &format)?)
            }
            Function::Range => self.range(args),
            Function::Dict => {
                let pairs = self.pairs(args)?;
                Value::dict(&self.meter, pairs)
            }
            Function::Namespace => {
                let namespace = Rc::new(Namespace::default());
                for (name, value) in self.pairs(args)? {
                    self.set_attribute(&namespace, &name.text(&self.meter)?, value)?;
                }
                self.meter.bytes(size_of::<Namespace>())?;
                self.namespaces.borrow_mut().push(namespace.clone());
                Ok(Value::Namespace(namespace))
            }
        }
    }

    /// The pairs of `dict(pairs or dict, name=value)`.
    fn pairs(&self, args: Args) -> Result<Vec<(Value, Value)>, Fault> {
        let mut pairs = Vec::new();
        let mut given = args.positional.into_iter();
        match (given.next(), given.next()) {
            (None, _) => {}
            (Some(Value::Dict(dict)), None) => pairs = dict.pairs.clone(),
            (Some(list), None) => {
                for pair in &list.items(&self.meter)?.items {
                    match &pair.items(&self.meter)?.items[..] {
                        [key, value] => self.insert(&mut pairs, key.clone(), value.clone())?,
                        _ => return Err(Fault::wrong("dict takes pairs")),
                    }
                }
            }
            _ => return Err(Fault::wrong("dict takes one argument without a name")),
        }
        for (name, value) in args.named {
            self.insert(&mut pairs, Value::Str(name), value)?;
        }
        Ok(pairs)
    }

    pub(super) fn set_attribute(&self, namespace: &Namespace, name: &Arc<str>, value: Value) -> Result<(), Fault> {
        if name.starts_with('_') {
            return Err(Fault::wrong(format!("a namespace cannot have {name}: names with _ in front are reserved")));
        }
        self.meter.steps(1)?;
        let mut names = namespace.0.borrow_mut();
        match names.iter_mut().find(|(n, _)| n == name) {
            Some((_, slot)) => *slot = value,
            None => names.push((name.clone(), value)),
        }
        Ok(())
    }

    fn range(&self, args: Args) -> Result<Value, Fault> {
        let given = args.positional.len();
        let [first, second, step] = args.bind("range", ["start", "stop", "step"])?;
        let first = int(Some(required(first, "range")?), 0, "range")?;
        let (start, stop) = if given < 2 { (0, first) } else { (first, int(second, 0, "range")?) };
        let step = int(step, 1, "range")?;
        if step == 0 {
            return Err(Fault::wrong("range by steps of 0"));
        }
        let span = if step > 0 { stop.checked_sub(start) } else { start.checked_sub(stop) };
        let count = match span {
            Some(span) if span <= 0 => 0,
            Some(span) => (span - 1) / step.checked_abs().unwrap_or(i128::MAX) + 1,
            None => i128::MAX,
        };
        if count > MAX_RANGE {
            return Err(Fault::limit(format!("a range of more than {MAX_RANGE}")));
        }
        Value::seq(&self.meter, SeqKind::Range, (0..count).map(|i| Value::Int(start + i * step)).collect())
    }
}
