//! llama.cpp's converter, backwards: from tensors as the file holds them to those that transformers would have. Rows are
//! whole blocks in every format, so that moving and cutting rows never touches a number; only norms are computed.

use super::family::Family;
use super::ggml::{self, Kind};
use super::header::{Tensor, shown};
use super::metadata::Metadata;
use super::names::{self, How, Known};
use crate::FileError;
use half::{bf16, f16};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::ops::Range;

/// Smaller than any expert is; so names cannot take much more memory than the file.
const LEAST_EXPERT: usize = 64;

/// Likewise, of a norm of one head.
const LEAST_HEAD: usize = 32;

/// One tensor of transformers': where in the file it lies, and what to do with that.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) part: usize,
    pub(super) kind: &'static Kind,
    /// As transformers has it.
    pub(super) dims: Vec<usize>,
    bytes: Range<usize>,
    undo: Undo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undo {
    Nothing,
    /// Each head's rows: first halves and second halves alternate in the file, and follow each other in transformers.
    Rotary {
        heads: usize,
    },
    /// Falcon's rows: `groups` times a group's queries, its key, its value. // [groups, queries + 2, size]
    Groups {
        heads: usize,
        groups: usize,
    },
    /// One less.
    Shift,
    /// So many rows of zeros in front.
    Lead(usize),
}

/// How the heads of a model divide rows.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) queries: usize,
    /// Of keys and of values.
    pub(super) keys: usize,
    pub(super) size: usize,
}

/// Every tensor by the name that transformers gives it, and apart from them those that only the configuration reads.
pub(super) struct Index {
    pub(super) named: BTreeMap<String, Source>,
    pub(super) aside: BTreeMap<String, Source>,
}

/// What is known when tensors are renamed.
pub(super) struct Context<'a> {
    pub(super) family: Family,
    /// Only asked where rows are to be moved.
    pub(super) heads: &'a dyn Fn() -> Result<Heads, FileError>,
    pub(super) metadata: Metadata<'a>,
}

impl Context<'_> {
    /// Renames `tensors`, which are keyed by their names in the file and come with the part that holds them.
    pub(super) fn index(&self, tensors: &BTreeMap<String, (usize, Tensor)>) -> Result<Index, FileError> {
        let mut index = Index { named: BTreeMap::new(), aside: BTreeMap::new() };
        for (name, (part, tensor)) in tensors {
            let whole = Source {
                part: *part,
                kind: tensor.kind,
                dims: tensor.dims.clone(),
                bytes: tensor.bytes.clone(),
                undo: Undo::Nothing,
            };
            let Some(known) = names::find(self.family, name) else {
                add(&mut index.named, name.clone(), whole).map_err(|what| self.metadata.fault(what))?;
                continue;
            };
            if known.rule.how == How::Aside {
                index.aside.insert(name.clone(), whole);
                continue;
            }
            let fail = |what: String| {
                self.metadata.fault(format!("holds a tensor that cannot be read: {}: {what}", shown(name)))
            };
            for (name, source) in self.sources(&known, whole, &fail)? {
                add(&mut index.named, name, source).map_err(|what| self.metadata.fault(what))?;
            }
        }
        Ok(index)
    }

    /// The tensors of transformers' in one of the file's.
    fn sources(
        &self,
        known: &Known,
        whole: Source,
        fail: &dyn Fn(String) -> FileError,
    ) -> Result<Vec<(String, Source)>, FileError> {
        let Known { before, rule, ending, expert } = known;
        let name = format!("{before}{}.{ending}", rule.name);
        let one = |source: Source| Ok(vec![(name.clone(), source)]);
        let part_of = |part: &dyn std::fmt::Display| format!("{before}{}.{part}.{ending}", rule.name);
        if let Some(expert) = expert {
            return match rule.how {
                How::Experts(called) => Ok(vec![(part_of(&format!("{expert}.{called}")), whole)]),
                _ => Err(fail("it is not an expert's".into())),
            };
        }
        match rule.how {
            How::Same | How::Aside => one(whole),
            How::Table if *ending == "weight" => one(whole.table()),
            How::Table => one(whole),
            How::Query => one(whole.rotary((self.heads)()?.queries).map_err(fail)?),
            How::Key => one(whole.rotary((self.heads)()?.keys).map_err(fail)?),
            How::Norm => one(whole.shifted().map_err(fail)?),
            How::Groups => one(whole.grouped((self.heads)()?).map_err(fail)?),
            How::Positions => {
                let pad = self.metadata.u64("tokenizer.ggml.padding_token_id")?.unwrap_or(1);
                one(whole.table().led(pad).map_err(fail)?)
            }
            How::Apart => {
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
            How::Heads => {
                let slices = whole.slices(2, LEAST_HEAD).map_err(fail)?;
                Ok(slices.into_iter().enumerate().map(|(head, slice)| (part_of(&head), slice)).collect())
            }
            How::Experts(called) => {
                let slices = whole.slices(3, LEAST_EXPERT).map_err(fail)?.into_iter().enumerate();
                Ok(slices.map(|(expert, slice)| (part_of(&format!("{expert}.{called}")), slice)).collect())
            }
        }
    }
}

fn add(named: &mut BTreeMap<String, Source>, name: String, source: Source) -> Result<(), String> {
    match named.entry(name) {
        Vacant(free) => drop(free.insert(source)),
        Occupied(taken) => return Err(format!("holds two tensors that are both {}", shown(taken.key()))),
    }
    Ok(())
}

impl Source {
    /// Where they lie in it.
    pub(super) fn bytes(&self) -> Range<usize> {
        self.bytes.clone()
    }

    /// Its numbers, from the file it lies in.
    pub(super) fn read<'a>(&self, file: &'a [u8]) -> Cow<'a, [u8]> {
        let bytes = &file[self.bytes.clone()];
        let gathered = |rows: usize, at: &dyn Fn(usize) -> usize| {
            let width = bytes.len() / rows;
            Cow::from((0..rows).flat_map(|row| &bytes[at(row) * width..][..width]).copied().collect::<Vec<u8>>())
        };
        match self.undo {
            Undo::Nothing => Cow::from(bytes),
            Undo::Rotary { heads } => {
                let size = self.dims[0] / heads;
                let half = size / 2;
                gathered(self.dims[0], &|row| row / size * size + row % size % half * 2 + row % size / half)
            }
            Undo::Groups { heads, groups } => {
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
            Undo::Shift => shifted(bytes, self.stored()),
            Undo::Lead(rows) => {
                let mut led = vec![0; bytes.len() / (self.dims[0] - rows) * rows];
                led.extend_from_slice(bytes);
                Cow::from(led)
            }
        }
    }

    /// The format that it is handed out in.
    pub(super) fn given(&self) -> u32 {
        if self.undo == Undo::Shift { ggml::F32 } else { self.kind.id }
    }

    fn stored(&self) -> u32 {
        self.kind.id
    }

    /// A matrix also where it has one row.
    fn table(mut self) -> Source {
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
        self.undo = Undo::Rotary { heads };
        Ok(self)
    }

    fn grouped(mut self, Heads { queries: heads, keys: groups, .. }: Heads) -> Result<Source, String> {
        let rows = self.rows()?;
        let whole = groups.checked_mul(2).and_then(|n| n.checked_add(heads)).filter(|_| groups > 0 && heads > 0);
        if whole.is_none_or(|whole| rows % whole != 0 || heads % groups != 0) {
            return Err(format!("its {rows} rows do not divide into {heads} heads in {groups} groups"));
        }
        self.undo = Undo::Groups { heads, groups };
        Ok(self)
    }

    fn shifted(mut self) -> Result<Source, String> {
        if !self.kind.is_float() {
            return Err(format!("it is a norm stored as {}; F32, F16 and BF16 can be read", self.kind.name));
        }
        self.undo = Undo::Shift;
        Ok(self)
    }

    /// With as many rows in front as positions up to `pad` take.
    fn led(mut self, pad: u64) -> Result<Source, String> {
        let rows = usize::try_from(pad).ok().filter(|&pad| pad < 16).map(|pad| pad + 1);
        let rows = rows.ok_or_else(|| format!("positions would begin behind {pad} (the token that pads)"))?;
        if !self.kind.is_float() {
            return Err(format!(
                "it is a table of positions stored as {}; F32, F16 and BF16 can be read",
                self.kind.name
            ));
        }
        self.dims[0] = self.dims[0].checked_add(rows).ok_or("it has more rows than any memory")?;
        self.undo = Undo::Lead(rows);
        Ok(self)
    }

    /// Rows that can be moved: of a matrix, or the numbers of a bias.
    fn rows(&self) -> Result<usize, String> {
        match self.dims[..] {
            [rows, _] => Ok(rows),
            [rows] if self.kind.block == 1 => Ok(rows),
            _ => Err(format!("it is {:?} in {}, and no matrix or bias", self.dims, self.kind.name)),
        }
    }

    /// Consecutive rows, so many each.
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

    /// What the first of `dims` dimensions counts, each of at least `least` bytes.
    fn slices(self, dims: usize, least: usize) -> Result<Vec<Source>, String> {
        let (Some((&count, rest)), true) = (self.dims.split_first(), self.dims.len() == dims) else {
            return Err(format!("it is {:?}; {dims} dimensions are expected", self.dims));
        };
        let width = self.bytes.len() / count;
        // A row must be whole blocks for a slice to be; that was checked, and a slice is whole rows.
        if width < least {
            return Err(format!("{count} slices of {width} bytes are too small to be right"));
        }
        let at = |n: usize| self.bytes.start + n * width..self.bytes.start + (n + 1) * width;
        Ok((0..count).map(|n| Source { bytes: at(n), dims: rest.to_vec(), ..self.clone() }).collect())
    }
}

/// Norms one less, in f32: what was added in f32 rounds back to what it was wherever the sum was exact.
fn shifted(bytes: &[u8], kind: u32) -> Cow<'static, [u8]> {
    fn less<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f32) -> Vec<u8> {
        bytes.as_chunks().0.iter().flat_map(|b| (read(*b) - 1.0).to_le_bytes()).collect()
    }
    Cow::from(match kind {
        ggml::F16 => less(bytes, |b| f16::from_le_bytes(b).to_f32()),
        ggml::BF16 => less(bytes, |b| bf16::from_le_bytes(b).to_f32()),
        _ => less(bytes, f32::from_le_bytes),
    })
}
