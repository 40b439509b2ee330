//! Weights by name: reads each tensor once from its file and puts it where the model needs it.

use crate::cpu::elem::{Elem, with_elem};
use crate::linear::Weight;
use crate::place::Kind;
use crate::quant::{Quant, dequantize};
use crate::tensor::host;
use crate::{DType, Error, Place, Result, Tensor, launch};
use half::{bf16, f16};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// One tensor as the file stores it: little-endian, row-major, perhaps unaligned.
#[derive(Clone, Debug)]
pub struct Raw<'a> {
    /// Its format in the file.
    pub stored: Stored,
    /// Its shape in the file.
    pub dims: Vec<usize>,
    /// Its bytes, borrowed from the file where the format needs no conversion. Empty for a plan,
    /// which reads shapes only.
    pub bytes: Cow<'a, [u8]>,
}

/// How a file stores a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// As floats.
    Float(DType),
    /// As quantized blocks along the last axis.
    Blocks(Quant),
}

/// Storage format of weight matrices. On a GPU it is the dtype of the activations, or blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightFormat {
    /// The dtype of the activations.
    #[default]
    Activations,
    /// The format in the file: floats if the activations are f32, blocks always.
    File,
    /// As `File`, and on CUDA a copy of blocks in the dtype of the activations, for products of
    /// many rows, which then need not dequantize the blocks.
    FileAndActivations,
    /// These blocks. Rows that are not a multiple of the block size become q8_0, or else the dtype
    /// of the activations.
    Blocks(Quant),
    /// Signed bytes with a scale per output (int8). Products then quantize activations to 8 bits
    /// too, with a scale per token.
    Bytes,
}

/// A memory-mapped file, page-aligned and immutable.
pub type Mapped = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// One or several files that weights are read from.
pub trait Store: Send + Sync {
    /// The tensor of that name, if it exists; an error if its format is unsupported.
    fn get(&self, name: &str) -> Result<Option<Raw<'_>>>;
    /// Only its format and shape.
    fn shape(&self, name: &str) -> Result<Option<(Stored, Vec<usize>)>> {
        Ok(self.get(name)?.map(|raw| (raw.stored, raw.dims)))
    }
    /// The names of all tensors.
    fn names(&self) -> Vec<String>;
    /// The mapped file that contains the tensor, if there is one. [`Store::get`] may borrow from
    /// it.
    fn file(&self, _name: &str) -> Option<Mapped> {
        None
    }
    /// Called when the tensor has been copied, so that its pages need not stay in memory. It may be
    /// read again.
    fn taken(&self, _name: &str) {}
}

/// A prefix in a store's tree of names, with the place and dtype that its tensors are loaded to.
#[derive(Clone)]
pub struct Weights {
    store: Arc<dyn Store>,
    prefix: String,
    place: Place,
    dtype: DType,
    format: WeightFormat,
    used: Arc<Mutex<BTreeSet<String>>>,
    /// Matrices laid out already, by name and format: word embeddings are often tied to the output
    /// layer.
    laid_out: Arc<Mutex<BTreeMap<String, Weight>>>,
}

impl Weights {
    /// The root of `store`.
    pub fn new(store: Arc<dyn Store>, dtype: DType, place: Place) -> Weights {
        Weights {
            store,
            prefix: String::new(),
            place,
            dtype,
            format: WeightFormat::default(),
            used: Arc::default(),
            laid_out: Arc::default(),
        }
    }

    /// The weights below the prefix `name`; `a.b` is `b` below `a`.
    pub fn sub(&self, name: impl std::fmt::Display) -> Weights {
        Weights { prefix: self.name(&name.to_string()), ..self.clone() }
    }

    /// Whether the store has `name` under this prefix; an error if it has it in an unsupported
    /// format.
    pub fn has(&self, name: &str) -> Result<bool> {
        Ok(self.store.shape(&self.name(name))?.is_some())
    }

    /// The tensor `name`, which must have exactly these dimensions.
    pub fn tensor(&self, name: &str, dims: &[usize]) -> Result<Tensor> {
        let raw = self.raw(name, dims)?;
        if raw.stored == Stored::Float(self.dtype)
            && let Some(tensor) = self.lent(name, &raw, 0..raw.bytes.len(), (dims, self.dtype))
        {
            return Ok(tensor);
        }
        Tensor::upload(dims, self.dtype, &self.place, || {
            with_elem!("weights", self.dtype, T => {
                let mut values = vec![T::default(); dims.iter().product()];
                raw.read::<T>(0, &mut values);
                host(values, dims)
            })
        })
    }

    /// The values of `name` on the host, from which a model computes something once: tables of
    /// another shape, scalars.
    pub fn values(&self, name: &str, dims: &[usize]) -> Result<Vec<f32>> {
        let raw = self.raw(name, dims)?;
        let mut values = vec![0f32; dims.iter().product()];
        if !raw.bytes.is_empty() {
            raw.read::<f32>(0, &mut values);
        }
        Ok(values)
    }

    /// Uploads values derived from [`Weights::values`] to the place of the weights, in their dtype.
    pub fn put(&self, values: &[f32], dims: &[usize]) -> Result<Tensor> {
        Tensor::from_f32(values, dims, self.dtype, &self.place)
    }

    /// The same weights in another dtype: heads stay in f32.
    pub fn in_dtype(&self, dtype: DType) -> Weights {
        Weights { dtype, ..self.clone() }
    }

    /// The same weights for heads and word embeddings: they are not quantized to bytes (int8),
    /// because they are a small part of the work and their whole error shows in the result; and
    /// they have no copies, because few rows are multiplied by them.
    pub fn of_head(&self) -> Weights {
        let format = match self.format {
            WeightFormat::Bytes => WeightFormat::Activations,
            WeightFormat::FileAndActivations => WeightFormat::File,
            other => other,
        };
        Weights { format, ..self.clone() }
    }

    /// The same weights in another storage format.
    pub fn with_format(&self, format: WeightFormat) -> Weights {
        Weights { format, ..self.clone() }
    }

    /// Marks `name` as read, if the store has it: training saved it, but this configuration does
    /// not need it.
    pub fn skip(&self, name: &str) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(self.name(name));
    }

    /// The dimensions of `name` in the file, if it is there.
    pub fn dims(&self, name: &str) -> Result<Option<Vec<usize>>> {
        Ok(self.store.shape(&self.name(name))?.map(|(_, dims)| dims))
    }

    /// Names in the store that nothing has read: heads that an encoder does not use, or a part of
    /// the model that the code does not know. The plan lists them for people to check.
    pub fn unused(&self) -> Vec<String> {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        self.store.names().into_iter().filter(|n| !used.contains(n)).collect()
    }

    /// The format of `name` in the file, if it is there.
    pub(crate) fn stored(&self, name: &str) -> Result<Option<Stored>> {
        Ok(self.store.shape(&self.name(name))?.map(|(stored, _)| stored))
    }

    /// The bytes of `name`, checked against `dims`.
    pub(crate) fn raw(&self, name: &str, dims: &[usize]) -> Result<Raw<'_>> {
        let name = self.name(name);
        let fail = |what: String| Error::Weight { name: name.clone(), what };
        let raw = match self.place.is_phantom() {
            true => self.store.shape(&name)?.map(|(stored, dims)| Raw { stored, dims, bytes: Cow::default() }),
            false => self.store.get(&name)?,
        };
        let raw = raw.ok_or_else(|| fail(format!("not in the file; {dims:?} was expected")))?;
        if raw.dims != dims {
            return Err(fail(format!("is {:?} in the file, {dims:?} by the configuration", raw.dims)));
        }
        if raw.stored == Stored::Float(DType::U32) {
            return Err(fail("holds integers".into()));
        }
        if !self.place.is_phantom() && raw.stored.bytes(dims) != Some(raw.bytes.len()) {
            return Err(fail(format!(
                "has {} bytes in the file, which is not the size of {dims:?} in {}",
                raw.bytes.len(),
                raw.stored
            )));
        }
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
        Ok(raw)
    }

    /// A tensor over these bytes of `name` in the mapped file, if the device can read them there
    /// without a copy.
    pub(crate) fn lent(
        &self,
        name: &str,
        raw: &Raw<'_>,
        bytes: Range<usize>,
        (dims, dtype): (&[usize], DType),
    ) -> Option<Tensor> {
        let Kind::Open(device, candle) = &self.place.0 else { return None };
        let file = self.store.file(&self.name(name)).filter(|_| device.is_gpu())?;
        // Bytes that were converted are not in the file.
        let start = raw.bytes.as_ptr().addr().checked_sub((*file).as_ref().as_ptr().addr())?;
        let is_borrowed = matches!(raw.bytes, Cow::Borrowed(_)) && start + raw.bytes.len() <= (*file).as_ref().len();
        let bytes = start + bytes.start..start + bytes.end;
        let lent = is_borrowed.then(|| launch::metal::mapped::lend(candle, &file, bytes, (dims, dtype)))??;
        Some(Tensor::real(lent, dtype, *device))
    }

    /// The matrix `name` as `lay_out` makes it, or the cached one.
    pub(crate) fn laid_out(&self, name: &str, lay_out: impl FnOnce() -> Result<Weight>) -> Result<Weight> {
        let key = format!("{} {} {:?}", self.name(name), self.dtype, self.format);
        if let Some(weight) = self.laid_out.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(weight.clone());
        }
        let weight = lay_out()?;
        self.laid_out.lock().unwrap_or_else(PoisonError::into_inner).insert(key, weight.clone());
        Ok(weight)
    }

    /// Tells the store that `name` has been copied.
    pub(crate) fn taken(&self, name: &str) {
        if !self.place.is_phantom() {
            self.store.taken(&self.name(name));
        }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn format(&self) -> WeightFormat {
        self.format
    }

    /// Vectors concatenated, each of the given length, in the place and dtype of the weights.
    pub(crate) fn join(&self, raws: &[(Raw<'_>, usize)]) -> Result<Tensor> {
        let dims = [raws.iter().map(|(_, n)| n).sum()];
        Tensor::upload(&dims, self.dtype, &self.place, || {
            with_elem!("weights", self.dtype, T => {
                let mut all = vec![T::default(); dims[0]];
                let mut rest = &mut all[..];
                for (raw, n) in raws {
                    let (out, tail) = rest.split_at_mut(*n);
                    raw.read(0, out);
                    rest = tail;
                }
                host(all, &dims)
            })
        })
    }

    fn name(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.into() } else { format!("{}.{name}", self.prefix) }
    }
}

impl Stored {
    /// Bytes of a tensor of this shape, if this format can store it.
    pub fn bytes(self, dims: &[usize]) -> Option<usize> {
        let n = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
        match self {
            Stored::Float(dtype) => n.checked_mul(dtype.size()),
            // A block does not span rows.
            Stored::Blocks(quant) => dims.last().and_then(|k| quant.bytes(*k)).and_then(|_| quant.bytes(n)),
        }
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stored::Float(dtype) => dtype.fmt(f),
            Stored::Blocks(quant) => quant.fmt(f),
        }
    }
}

impl Raw<'_> {
    /// Reads elements from `start` on into `out`, rounded to `T`, until `out` is full.
    pub(crate) fn read<T: Elem>(&self, start: usize, out: &mut [T]) {
        let dtype = match self.stored {
            Stored::Float(dtype) => dtype,
            Stored::Blocks(quant) => return self.unblock(quant, start, out),
        };
        let bytes = &self.bytes[start * dtype.size()..][..out.len() * dtype.size()];
        match dtype {
            DType::F32 => each(bytes, out, |b: [u8; 4]| T::narrow(f32::from_le_bytes(b))),
            DType::BF16 => each(bytes, out, |b: [u8; 2]| T::narrow(bf16::from_le_bytes(b).to_f32())),
            DType::F16 => each(bytes, out, |b: [u8; 2]| T::narrow(f16::from_le_bytes(b).to_f32())),
            DType::U32 | DType::U8 | DType::F64 | DType::I64 => unreachable!("refused by Weights::raw"),
        }
    }

    /// [`Raw::read`] for blocks: dequantizes every block that holds one of the elements.
    fn unblock<T: Elem>(&self, quant: Quant, start: usize, out: &mut [T]) {
        let (elements, bytes) = quant.block();
        let blocks = start / elements..(start + out.len()).div_ceil(elements);
        let mut values = vec![0f32; blocks.len() * elements];
        let data = &self.bytes[blocks.start * bytes..blocks.end * bytes];
        // These are whole blocks, so `dequantize` cannot fail.
        let is_ok = dequantize(quant, data, &mut values).is_ok();
        debug_assert!(is_ok);
        let values = &values[start - blocks.start * elements..];
        out.iter_mut().zip(values).for_each(|(o, v)| *o = T::narrow(*v));
    }
}

fn each<T, const N: usize>(bytes: &[u8], out: &mut [T], convert: impl Fn([u8; N]) -> T) {
    let (chunks, _) = bytes.as_chunks::<N>();
    chunks.iter().zip(out).for_each(|(b, o)| *o = convert(*b));
}
