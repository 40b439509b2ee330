//! Attributes, and the argument that the host must pass for each parameter of a kernel.

use std::collections::BTreeSet;

use crate::Error;
use crate::token::Tokens;

/// Where a kernel's parameter comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Binding {
    /// An entry of the buffer table. If `when` names a function constant, the argument is present
    /// only if that constant is true.
    Buffer { index: usize, when: Option<String> },
    /// An entry of the table of threadgroup memory; the host sets its length.
    Threadgroup { index: usize },
    /// A position or size in three dimensions, from this field of the thread's arguments.
    Vector(&'static str),
    /// The same in one dimension.
    Scalar(&'static str),
}

/// A name in `[[...]]` with the text of its argument.
pub(crate) struct Attribute {
    pub(crate) name: String,
    pub(crate) argument: String,
}

impl Attribute {
    /// The text of the string literals in the argument, joined as a C compiler joins neighbours.
    pub(crate) fn string(&self) -> String {
        self.argument.split('"').skip(1).step_by(2).collect()
    }

    fn index(&self) -> Result<usize, Error> {
        self.argument.parse().map_err(|_| Error(format!("[[{}({})]] needs a literal index", self.name, self.argument)))
    }
}

/// The attributes in the `[[...]]` at `at`.
pub(crate) fn attributes(tokens: &Tokens, at: usize) -> Result<Vec<Attribute>, Error> {
    let end = tokens.closing(at)? - 1;
    let (mut found, mut i) = (Vec::new(), at + 2);
    while i < end {
        let name = tokens.at(i).to_string();
        let mut argument = String::new();
        i += 1;
        if tokens.at(i) == "(" {
            let close = tokens.closing(i)?;
            argument = tokens.source(i + 1, close);
            i = close + 1;
        }
        found.push(Attribute { name, argument });
        while i < end && tokens.at(i) != "," {
            i += 1;
        }
        i += 1;
    }
    Ok(found)
}

fn built_in(attribute: &str) -> Option<Binding> {
    use Binding::{Scalar, Vector};
    Some(match attribute {
        "thread_position_in_grid" => Vector("thread_position_in_grid"),
        "thread_position_in_threadgroup" => Vector("thread_position_in_threadgroup"),
        "threadgroup_position_in_grid" => Vector("threadgroup_position_in_grid"),
        "threads_per_threadgroup" | "dispatch_threads_per_threadgroup" => Vector("threads_per_threadgroup"),
        "threadgroups_per_grid" => Vector("threadgroups_per_grid"),
        "threads_per_grid" => Vector("threads_per_grid"),
        "thread_index_in_threadgroup" => Scalar("thread_index_in_threadgroup"),
        "thread_index_in_simdgroup" => Scalar("thread_index_in_simdgroup"),
        "simdgroup_index_in_threadgroup" => Scalar("simdgroup_index_in_threadgroup"),
        "simdgroups_per_threadgroup" => Scalar("simdgroups_per_threadgroup"),
        "threads_per_simdgroup" => Scalar("threads_per_simdgroup"),
        _ => return None,
    })
}

/// Bindings of the parameters between the parentheses at `open` and `close`. As in Metal, a
/// parameter without an index gets the lowest free one.
pub(crate) fn bindings(tokens: &Tokens, open: usize, close: usize) -> Result<Vec<Binding>, Error> {
    let mut bindings = Vec::new();
    let mut used = BTreeSet::new();
    let mut unindexed = Vec::new();
    let mut threadgroup_count = 0;
    for (from, to) in parameters(tokens, open, close)? {
        let (mut binding, mut when) = (None, None);
        for at in (from..to).filter(|&at| tokens.is_attribute(at)) {
            for attribute in attributes(tokens, at)? {
                match attribute.name.as_str() {
                    "buffer" => {
                        let index = attribute.index()?;
                        used.insert(index);
                        binding = Some(Binding::Buffer { index, when: None });
                    }
                    // `threadgroup` is a macro for `__local`, in attributes too.
                    "threadgroup" | "__local" => {
                        binding = Some(Binding::Threadgroup { index: attribute.index()? });
                    }
                    "function_constant" => when = Some(attribute.argument),
                    name => binding = built_in(name).or(binding),
                }
            }
        }
        if binding.is_none() && (from..to).any(|at| tokens.at(at) == "__local") {
            binding = Some(Binding::Threadgroup { index: threadgroup_count });
        }
        if matches!(binding, Some(Binding::Threadgroup { .. })) {
            threadgroup_count += 1;
        }
        if binding.is_none() {
            unindexed.push(bindings.len());
        }
        bindings.push(match (binding, when) {
            (Some(Binding::Buffer { index, .. }), when) => Binding::Buffer { index, when },
            (None, when) => Binding::Buffer { index: usize::MAX, when },
            (Some(other), None) => other,
            (Some(_), Some(_)) => {
                let parameter = tokens.source(from, to);
                return Err(Error(format!("only a buffer may depend on a function constant: {parameter}")));
            }
        });
    }
    for position in unindexed {
        let free = (0..).find(|index| !used.contains(index)).expect("indices are endless");
        used.insert(free);
        if let Binding::Buffer { index, .. } = &mut bindings[position] {
            *index = free;
        }
    }
    Ok(bindings)
}

/// Ranges of the comma-separated parameters between two parentheses.
fn parameters(tokens: &Tokens, open: usize, close: usize) -> Result<Vec<(usize, usize)>, Error> {
    let mut ranges = Vec::new();
    let (mut from, mut at) = (open + 1, open + 1);
    while at < close {
        match tokens.at(at) {
            "(" | "[" | "<" => at = tokens.closing(at)?,
            "," => {
                ranges.push((from, at));
                from = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    if from < close {
        ranges.push((from, close));
    }
    Ok(ranges)
}
