//! The tensors of a state dict, from the parsed pickle of a checkpoint.

use super::Dtype;
use super::pickle::{Global, Machine, Span, Value, escaped};
use std::collections::HashSet;

/// Torch's limit is 64; weights have at most five axes.
const MAX_AXES: usize = 8;
/// The largest mixture-of-experts models have as many, over a hundred files.
const MAX_TENSORS: usize = 1 << 16;
/// Keys under which training scripts nest the state dict.
const NESTED: [&[u8]; 4] = [b"state_dict", b"model_state_dict", b"model", b"module"];

/// A tensor as the pickle describes it, not yet checked against the file.
pub(super) struct Tensor<'a> {
    pub(super) dtype: Dtype,
    /// The key of its storage.
    pub(super) key: &'a str,
    /// Elements in that storage.
    pub(super) length: usize,
    /// Elements before its first.
    pub(super) offset: usize,
    pub(super) dims: Vec<usize>,
    /// As many as `dims`, in elements.
    pub(super) strides: Vec<usize>,
}

/// A storage as the pickle describes it.
#[derive(PartialEq, Eq)]
pub(super) struct Storage<'a> {
    /// `None` if it is untyped: then the tensor gives the dtype.
    pub(super) dtype: Option<Dtype>,
    pub(super) key: &'a str,
    /// Elements, or bytes if it is untyped.
    pub(super) length: usize,
}

/// The tensors of the state dict in the pickle's `value`, in its order, names unique.
pub(super) fn state_dict<'a>(
    machine: &Machine<'a>,
    mut value: Value<'a>,
) -> Result<Vec<(&'a str, Tensor<'a>)>, String> {
    // Scripts nest at most twice, {"model": {"state_dict": {…}}}, and a dict may contain itself.
    for _ in 0..2 {
        let Value::Dict(dict) = value else { break };
        let inner = |name: &&[u8]| {
            let is_it = |(key, value): &_| matches!((key, value), (Value::Text(text), Value::Dict(_)) if text == name);
            machine.entries(dict).find(is_it)
        };
        let Some((_, nested)) = NESTED.iter().find_map(inner) else { break };
        value = nested;
    }
    if let Value::Dict(dict) = value
        && let tensors = tensors(machine, dict)?
        && !tensors.is_empty()
    {
        return Ok(tensors);
    }
    Err("holds no state dict, that is, no dict of tensors by name (at the top or under state_dict or model); save \
         model.state_dict() in Python"
        .into())
}

/// The tensors directly in `dict`.
fn tensors<'a>(machine: &Machine<'a>, dict: u32) -> Result<Vec<(&'a str, Tensor<'a>)>, String> {
    let mut names = HashSet::new();
    let mut tensors = Vec::new();
    for (key, value) in machine.entries(dict) {
        let Value::Tensor(arguments) = value else { continue };
        let Value::Text(name) = key else { return Err("holds a tensor under a key that is no text".into()) };
        if tensors.len() == MAX_TENSORS {
            return Err(format!("holds more than {MAX_TENSORS} tensors"));
        }
        // Otherwise one long name from the memo could be copied again and again.
        if !names.insert(name) {
            return Err(format!("holds two tensors of the name {}", escaped(name)));
        }
        let tensor = tensor(machine, arguments).map_err(|what| format!("{}: {what}", escaped(name)));
        let text = std::str::from_utf8(name).map_err(|_| format!("{} is not UTF-8", escaped(name)));
        match text.and_then(|text| Ok((text, tensor?))) {
            Ok(found) => tensors.push(found),
            Err(what) => return Err(format!("holds a tensor that cannot be read: {what}")),
        }
    }
    Ok(tensors)
}

fn tensor<'a>(machine: &Machine<'a>, arguments: Span) -> Result<Tensor<'a>, &'static str> {
    // The rest: requires_grad, hooks, since _rebuild_tensor_v3 the dtype, and sometimes flags
    // (negated, conjugated).
    let &[Value::Storage(id), Value::Int(offset), Value::Tuple(size), Value::Tuple(stride), _, _, ref more @ ..] =
        machine.items(arguments)
    else {
        return Err("it is not built as torch.save builds a tensor");
    };
    let given = match more {
        [] => None,
        [Value::Global(Global::Dtype(dtype))] => Some(*dtype),
        _ => return Err("its values are marked as negated or conjugated; save it again after .resolve_neg()"),
    };
    let Storage { dtype: stored, key, length } = storage(machine, id)?;
    let (dtype, length) = match (given, stored) {
        (Some(dtype), Some(stored)) if dtype != stored => return Err("it and its storage differ in format"),
        (_, Some(stored)) => (stored, length),
        (Some(dtype), None) => (dtype, length / dtype.size()),
        (None, None) => return Err("its storage has no format"),
    };
    let (size, stride) = (machine.items(size), machine.items(stride));
    if size.len() != stride.len() || size.len() > MAX_AXES {
        return Err("its shape and its strides do not match, or it has too many axes");
    }
    Ok(Tensor {
        dtype,
        key,
        length,
        offset: whole(&Value::Int(offset))?,
        dims: size.iter().map(whole).collect::<Result<_, _>>()?,
        strides: stride.iter().map(whole).collect::<Result<_, _>>()?,
    })
}

/// Parses the tuple that names a storage. The legacy format has a sixth item, None unless the
/// storage is a view of another.
pub(super) fn storage<'a>(machine: &Machine<'a>, id: Span) -> Result<Storage<'a>, &'static str> {
    let (&[Value::Text(b"storage"), Value::Global(Global::Storage(dtype)), Value::Text(key), _, ref length]
    | &[
        Value::Text(b"storage"),
        Value::Global(Global::Storage(dtype)),
        Value::Text(key),
        _,
        ref length,
        Value::None,
    ]) = machine.items(id)
    else {
        return Err("its storage is not named as torch.save names it");
    };
    let key = std::str::from_utf8(key).ok().filter(|key| key.len() <= 64);
    let key = key.ok_or("its storage has a name that torch.save would not give")?;
    Ok(Storage { dtype, key, length: whole(length)? })
}

fn whole(value: &Value) -> Result<usize, &'static str> {
    match value {
        Value::Int(n) => usize::try_from(*n).map_err(|_| "its shape or its storage has a negative number"),
        _ => Err("its shape or its storage is not counted in whole numbers"),
    }
}
