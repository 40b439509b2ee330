//! Reverses llama.cpp's conversion: from the tensors of the file to those of transformers. Rows are
//! whole blocks in every type, so moving and splitting rows never changes a number; only norms are
//! computed.

use super::family::Family;
use super::ggml::{self, GgmlType};
use super::header::{Tensor, quoted};
use super::metadata::Metadata;
use super::names::{self, Conversion, KnownTensor};
use crate::FileError;
use half::{bf16, f16};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::ops::Range;

/// Smaller than any expert matrix, in bytes. It bounds the memory for names by the size of the
/// file.
const MIN_EXPERT: usize = 64;

/// Smaller than the norm of any head, in bytes, for the same reason.
const MIN_HEAD: usize = 32;

/// A transformers tensor: its range in the file, and the conversion to reverse.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) part: usize,
    pub(super) kind: &'static GgmlType,
    /// Dimensions in transformers.
    pub(super) dims: Vec<usize>,
    bytes: Range<usize>,
    reversal: Reversal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reversal {
    None,
    /// Rows of each head: first and second half alternate in the file, and are consecutive in
    /// transformers.
    Rotary {
        heads: usize,
    },
    /// Rows of Falcon and GPT-NeoX in transformers, `[groups, queries + 2, size]`: for each group
    /// its queries, its key, its value.
    Groups {
        heads: usize,
        groups: usize,
    },
    /// Subtracts 1.
    MinusOne,
    /// Puts this many zero rows in front.
    LeadingRows(usize),
}

/// Attention heads of a model: query heads, KV heads and head size.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) queries: usize,
    /// KV heads.
    pub(super) keys: usize,
    pub(super) size: usize,
}

/// All tensors by transformers name, and separately those that only the configuration reads.
pub(super) struct Index {
    pub(super) named: BTreeMap<String, Source>,
    pub(super) config_only: BTreeMap<String, Source>,
}

/// Input for renaming tensors.
pub(super) struct Context<'a> {
    pub(super) family: Family,
    /// Only called if rows must be moved.
    pub(super) heads: &'a dyn Fn() -> Result<Heads, FileError>,
    pub(super) metadata: Metadata<'a>,
}

impl Context<'_> {
    /// Renames `tensors`, keyed by their names in the file, each with the index of its part.
    pub(super) fn index(&self, tensors: &BTreeMap<String, (usize, Tensor)>) -> Result<Index, FileError> {
        let mut index = Index { named: BTreeMap::new(), config_only: BTreeMap::new() };
        for (name, (part, tensor)) in tensors {
            let whole = Source {
                part: *part,
                kind: tensor.kind,
                dims: tensor.dims.clone(),
                bytes: tensor.bytes.clone(),
                reversal: Reversal::None,
            };
            let Some(known) = names::find(self.family, name) else {
                add(&mut index.named, name.clone(), whole).map_err(|what| self.metadata.fault(what))?;
                continue;
            };
            if known.rule.conversion == Conversion::ConfigOnly {
                index.config_only.insert(name.clone(), whole);
                continue;
            }
            let fail = |what: String| {
                self.metadata.fault(format!("holds a tensor that cannot be read: {}: {what}", quoted(name)))
            };
            for (name, source) in self.sources(&known, whole, &fail)? {
                add(&mut index.named, name, source).map_err(|what| self.metadata.fault(what))?;
            }
        }
        Ok(index)
    }

    /// The transformers tensors in one tensor of the file.
    fn sources(
        &self,
        known: &KnownTensor,
        whole: Source,
        fail: &dyn Fn(String) -> FileError,
    ) -> Result<Vec<(String, Source)>, FileError> {
        let KnownTensor { before, rule, ending, expert } = known;
        let name = format!("{before}{}.{ending}", rule.name);
        let one = |source: Source| Ok(vec![(name.clone(), source)]);
        let part_of = |part: &dyn std::fmt::Display| format!("{before}{}.{part}.{ending}", rule.name);
        if let Some(expert) = expert {
            return match rule.conversion {
                Conversion::Experts(called) => Ok(vec![(part_of(&format!("{expert}.{called}")), whole)]),
                _ => Err(fail("it is not an expert's".into())),
            };
        }
        match rule.conversion {
            Conversion::Same | Conversion::ConfigOnly => one(whole),
            Conversion::Table if *ending == "weight" => one(whole.into_matrix()),
            Conversion::Table => one(whole),
            Conversion::Query => one(whole.rotary((self.heads)()?.queries).map_err(fail)?),
            Conversion::Key => one(whole.rotary((self.heads)()?.keys).map_err(fail)?),
            Conversion::PlusOne => one(whole.minus_one().map_err(fail)?),
            Conversion::GroupedQkv => one(whole.grouped((self.heads)()?).map_err(fail)?),
            Conversion::Positions => {
                let pad = self.metadata.u64("tokenizer.ggml.padding_token_id")?.unwrap_or(1);
                one(whole.into_matrix().with_leading_rows(pad).map_err(fail)?)
            }
            Conversion::SplitQkv => {
                let Heads { queries, keys, size } = (self.heads)()?;
                let rows = [queries, keys, keys].map(|heads| heads.saturating_mul(size));
                let rotated = self.family == Family::Llama || self.family == Family::Mixtral;
                let cut = whole.cut(&rows).map_err(fail)?;
                let mut parts = Vec::new();
                for ((source, called), heads) in
                    cut.into_iter().zip(["q_proj", "k_proj", "v_proj"]).zip([queries, keys, 0])
                {
                    let source = if rotated && heads > 0 { source.rotary(heads).map_err(fail)? } else { source };
                    parts.push((part_of(&called), source));
                }
                Ok(parts)
            }
            Conversion::HeadNorms => {
                let slices = whole.slices(2, MIN_HEAD).map_err(fail)?;
                Ok(slices.into_iter().enumerate().map(|(head, slice)| (part_of(&head), slice)).collect())
            }
            Conversion::Experts(called) => {
                let slices = whole.slices(3, MIN_EXPERT).map_err(fail)?.into_iter().enumerate();
                Ok(slices.map(|(expert, slice)| (part_of(&format!("{expert}.{called}")), slice)).collect())
            }
        }
    }
}

fn add(named: &mut BTreeMap<String, Source>, name: String, source: Source) -> Result<(), String> {
    match named.entry(name) {
        Vacant(free) => drop(free.insert(source)),
        Occupied(taken) => return Err(format!("holds two tensors that are both {}", quoted(taken.key()))),
    }
    Ok(())
}

impl Source {
    /// The range in the file.
    pub(super) fn bytes(&self) -> Range<usize> {
        self.bytes.clone()
    }

    /// The tensor's data with the conversion reversed, from the bytes of its file.
    pub(super) fn read<'a>(&self, file: &'a [u8]) -> Cow<'a, [u8]> {
        let bytes = &file[self.bytes.clone()];
        let gathered = |rows: usize, at: &dyn Fn(usize) -> usize| {
            let width = bytes.len() / rows;
            Cow::from((0..rows).flat_map(|row| &bytes[at(row) * width..][..width]).copied().collect::<Vec<u8>>())
        };
        match self.reversal {
            Reversal::None => Cow::from(bytes),
            Reversal::Rotary { heads } => {
                let size = self.dims[0] / heads;
                let half = size / 2;
                gathered(self.dims[0], &|row| row / size * size + row % size % half * 2 + row % size / half)
            }
            Reversal::Groups { heads, groups } => {
                let (queries, size) = (heads / groups, self.dims[0] / (heads + 2 * groups));
                gathered(self.dims[0], &|row| {
                    let (group, of) = (row / size / (queries + 2), row / size % (queries + 2));
                    let head = match of.checked_sub(queries) {
                        None => group * queries + of,
                        Some(keys_or_values) => heads + keys_or_values * groups + group,
                    };
                    head * size + row % size
                })
            }
            Reversal::MinusOne => subtract_one(bytes, self.stored()),
            Reversal::LeadingRows(rows) => {
                let mut rows_with_zeros = vec![0; bytes.len() / (self.dims[0] - rows) * rows];
                rows_with_zeros.extend_from_slice(bytes);
                Cow::from(rows_with_zeros)
            }
        }
    }

    /// The ggml type of the data that `read` returns.
    pub(super) fn output_type(&self) -> u32 {
        if self.reversal == Reversal::MinusOne { ggml::F32 } else { self.kind.id }
    }

    fn stored(&self) -> u32 {
        self.kind.id
    }

    /// A single row becomes a matrix.
    fn into_matrix(mut self) -> Source {
        if self.dims.len() == 1 {
            self.dims.insert(0, 1);
        }
        self
    }

    fn rotary(mut self, heads: usize) -> Result<Source, String> {
        let rows = self.rows()?;
        if heads == 0 || rows % heads != 0 || !(rows / heads).is_multiple_of(2) {
            return Err(format!("its {rows} rows do not divide into {heads} heads of even size"));
        }
        self.reversal = Reversal::Rotary { heads };
        Ok(self)
    }

    fn grouped(mut self, Heads { queries: heads, keys: groups, .. }: Heads) -> Result<Source, String> {
        let rows = self.rows()?;
        let whole = groups.checked_mul(2).and_then(|n| n.checked_add(heads)).filter(|_| groups > 0 && heads > 0);
        if whole.is_none_or(|whole| rows % whole != 0 || heads % groups != 0) {
            return Err(format!("its {rows} rows do not divide into {heads} heads in {groups} groups"));
        }
        self.reversal = Reversal::Groups { heads, groups };
        Ok(self)
    }

    fn minus_one(mut self) -> Result<Source, String> {
        if !self.kind.is_float() {
            return Err(format!("it is a norm stored as {}; supported are F32, F16 and BF16", self.kind.name));
        }
        self.reversal = Reversal::MinusOne;
        Ok(self)
    }

    /// Adds the leading rows of positions up to `pad`.
    fn with_leading_rows(mut self, pad: u64) -> Result<Source, String> {
        let rows = usize::try_from(pad).ok().filter(|&pad| pad < 16).map(|pad| pad + 1);
        let rows = rows.ok_or_else(|| format!("tokenizer.ggml.padding_token_id is {pad}; at most 15 is supported"))?;
        if !self.kind.is_float() {
            return Err(format!(
                "it holds position embeddings stored as {}; supported are F32, F16 and BF16",
                self.kind.name
            ));
        }
        self.dims[0] = self.dims[0].checked_add(rows).ok_or("it has too many rows")?;
        self.reversal = Reversal::LeadingRows(rows);
        Ok(self)
    }

    /// Number of rows: of a matrix, or the elements of a bias.
    fn rows(&self) -> Result<usize, String> {
        match self.dims[..] {
            [rows, _] => Ok(rows),
            [rows] if self.kind.block == 1 => Ok(rows),
            _ => Err(format!("it is {:?} in {}, which is not a matrix or bias", self.dims, self.kind.name)),
        }
    }

    /// Splits into consecutive groups of rows.
    fn cut(self, rows: &[usize]) -> Result<Vec<Source>, String> {
        let have = self.rows()?;
        if rows.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)) != Some(have) || rows.contains(&0) {
            return Err(format!("its {have} rows are not {rows:?}"));
        }
        let width = self.bytes.len() / have;
        let mut start = self.bytes.start;
        let slice = |&rows: &usize| {
            let bytes = start..start + rows * width;
            start = bytes.end;
            let dims = [&[rows], &self.dims[1..]].concat();
            Source { bytes, dims, ..self.clone() }
        };
        Ok(rows.iter().map(slice).collect())
    }

    /// Splits along the first of `dims` dimensions into slices of at least `least` bytes.
    fn slices(self, dims: usize, least: usize) -> Result<Vec<Source>, String> {
        let (Some((&count, rest)), true) = (self.dims.split_first(), self.dims.len() == dims) else {
            return Err(format!("it is {:?}; {dims} dimensions are expected", self.dims));
        };
        let width = self.bytes.len() / count;
        // A slice consists of whole rows, which were checked to be whole blocks.
        if width < least {
            return Err(format!("{count} slices of {width} bytes are too small to be right"));
        }
        let at = |n: usize| self.bytes.start + n * width..self.bytes.start + (n + 1) * width;
        Ok((0..count).map(|n| Source { bytes: at(n), dims: rest.to_vec(), ..self.clone() }).collect())
    }
}

/// Subtracts 1 from norms, in f32. The converter added 1 in f32, so the result is the original
/// value wherever that sum was exact.
fn subtract_one(bytes: &[u8], kind: u32) -> Cow<'static, [u8]> {
    fn less<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f32) -> Vec<u8> {
        bytes.as_chunks().0.iter().flat_map(|b| (read(*b) - 1.0).to_le_bytes()).collect()
    }
    Cow::from(match kind {
        ggml::F16 => less(bytes, |b| f16::from_le_bytes(b).to_f32()),
        ggml::BF16 => less(bytes, |b| bf16::from_le_bytes(b).to_f32()),
        _ => less(bytes, f32::from_le_bytes),
    })
}
