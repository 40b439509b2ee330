//! Torch checkpoints. Since torch 1.6 `torch.save` writes a zip of uncompressed entries: a pickle
//! that describes the tensors, and one entry of bytes per storage. Before that, and on request, it
//! wrote pickles and bytes one after the other (see `legacy`). Python would run the pickle; here it
//! is only parsed (see `pickle`), and everything that a state dict does not need is refused by
//! name.

mod legacy;
mod pickle;
mod state;
#[cfg(test)]
mod tests;
mod zip;

use pickle::{Machine, Value};
use std::collections::HashMap;
use std::ops::Range;

/// A dtype of torch, named as in safetensors so that messages agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "the names that safetensors prints")]
pub(crate) enum Dtype {
    F64,
    F32,
    F16,
    BF16,
    F8_E4M3,
    F8_E5M2,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
}

impl Dtype {
    /// Bytes per element.
    pub(crate) fn size(self) -> usize {
        match self {
            Dtype::F64 | Dtype::I64 | Dtype::U64 => 8,
            Dtype::F32 | Dtype::I32 | Dtype::U32 => 4,
            Dtype::F16 | Dtype::BF16 | Dtype::I16 | Dtype::U16 => 2,
            Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::I8 | Dtype::U8 | Dtype::Bool => 1,
        }
    }
}

/// A tensor's position in the file: row-major, little-endian, possibly unaligned, possibly shared
/// with another name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its dtype. Integers are listed too; the caller may refuse them.
    pub dtype: Dtype,
    /// Its shape.
    pub dims: Vec<usize>,
    /// Its range in the file, exactly as long as the shape needs.
    pub bytes: Range<usize>,
    /// Whether a matrix is stored column-major: torch saves a transposed matrix as a view.
    pub column_major: bool,
}

const BIG_ENDIAN: &str =
    "was written by a big-endian machine, which is not supported; save it again on a little-endian one";

/// A checkpoint with a parsed pickle.
struct Checkpoint<'a> {
    machine: Machine<'a>,
    /// The value of the pickle.
    value: Value<'a>,
    /// The range of each storage in the file.
    storages: HashMap<&'a str, Range<usize>>,
}

/// Lists every tensor of the state dict in the checkpoint `bytes`, in the order of the file, names
/// unique. The error completes a sentence that begins with the file's name. Only the directory and
/// the pickles are read, so a mapped file stays on disk.
pub(crate) fn index(bytes: &[u8]) -> Result<Vec<(String, Entry)>, String> {
    let Checkpoint { machine, value, storages } = if zip::is_one(bytes) {
        zipped(bytes)?
    } else if let Some(at) = legacy::after_magic(bytes) {
        legacy::checkpoint(bytes, at)?
    } else {
        return Err("is not a checkpoint of torch.save. If another program wrote it, load it in Python and save \
                    model.state_dict(), best as safetensors. If the download saved a Git LFS pointer or a web \
                    page instead, fetch it again"
            .into());
    };
    let place = |tensor: &state::Tensor| {
        let at = storages.get(tensor.key).ok_or_else(|| format!("its bytes, data/{}, are missing", tensor.key));
        at.and_then(|at| locate(tensor, at))
    };
    let tensors = state::state_dict(&machine, value)?.into_iter().map(|(name, tensor)| match place(&tensor) {
        Ok(entry) => Ok((name.to_owned(), entry)),
        Err(what) => Err(format!("holds a tensor that cannot be read: {}: {what}", pickle::escaped(name.as_bytes()))),
    });
    tensors.collect()
}

/// Parses a checkpoint in a zip.
fn zipped(bytes: &[u8]) -> Result<Checkpoint<'_>, String> {
    let entries = zip::entries(bytes)?;
    if let Some(order) = entries.get("byteorder").and_then(|at| bytes.get(at.clone()))
        && order != b"little"
    {
        return Err(BIG_ENDIAN.into());
    }
    let pickled = entries
        .get("data.pkl")
        .and_then(|at| bytes.get(at.clone()))
        .ok_or("is a zip without data.pkl, so not a checkpoint of torch.save")?;
    let (machine, value) = Machine::run(pickled)?;
    let storages = entries.into_iter().filter_map(|(name, at)| Some((name.strip_prefix("data/")?, at))).collect();
    Ok(Checkpoint { machine, value, storages })
}

/// Locates `tensor` in the file, given the range of its storage.
fn locate(tensor: &state::Tensor, storage: &Range<usize>) -> Result<Entry, String> {
    let state::Tensor { dtype, ref dims, ref strides, offset, length, .. } = *tensor;
    let size = dtype.size();
    let too_large = || format!("its shape {dims:?} is larger than any memory");
    // Later code may multiply the large dimensions first, so zero dimensions count as 1 in this
    // overflow check.
    let room = dims.iter().try_fold(size, |n, &d| n.checked_mul(d.max(1))).ok_or_else(too_large)?;
    let empty = dims.contains(&0);
    let column_major =
        matches!((&dims[..], &strides[..]), ([rows, columns], [1, step]) if step == rows && *rows > 1 && *columns > 1);
    let mut step = 1;
    for (&dim, &stride) in dims.iter().zip(strides).rev().filter(|_| !column_major) {
        // The stride of an axis of length 1 is arbitrary.
        if dim != 1 && stride != step && !empty {
            return Err(format!(
                "its shape {dims:?} with strides {strides:?} has gaps or permuted axes; save it again in Python after \
                 .contiguous(), or as safetensors"
            ));
        }
        step *= dim.max(1);
    }
    let held = storage.len();
    if length.checked_mul(size).is_none_or(|declared| declared > held) {
        return Err(format!("its storage should have {length} elements of {size} bytes, the file has {held} bytes"));
    }
    let bytes = if empty { 0 } else { room };
    let start = if empty { Some(0) } else { offset.checked_mul(size) };
    let end = start.and_then(|start| start.checked_add(bytes)).filter(|&end| end <= length * size);
    match (start, end) {
        (Some(start), Some(end)) => {
            Ok(Entry { dtype, dims: dims.clone(), bytes: storage.start + start..storage.start + end, column_major })
        }
        _ => Err(format!("{dims:?} from element {offset} on does not fit its storage of {length} elements")),
    }
}
