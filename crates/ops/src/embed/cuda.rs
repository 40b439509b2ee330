//! Launches `kernel.cu`: one thread per 16 bytes of a token, or one warp per token with a norm. It
//! also looks up rows of tied embeddings.

use super::{EmbedOp, MAX_TABLES};
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;
use crate::launch::strided::Rows;
use crate::{Error, LayerNorm, Result, Tensor};

const BINARY: Binary = binary!("embed");

/// Tokens per block with norms, and the longest row that a warp holds in registers.
const WARPS: usize = 4;
const MAX_NORM_ROW: usize = 1024;

/// Tables and ids as kernel arguments.
struct Tables {
    open: Vec<(View, View, Rows)>,
    tokens: usize,
    /// Row length.
    n: usize,
    /// Whether all rows are whole, aligned runs of 16 bytes.
    aligned: bool,
}

impl Tables {
    fn of(pairs: &[(&Tensor, &Tensor)]) -> Result<Tables> {
        let open = |(table, ids): &(&Tensor, &Tensor)| {
            let (table, ids) = (View::of(table)?, View::whole(ids)?);
            let rows = table.rows()?;
            if rows.rows == 0 {
                return Err(Error::call("embed", "an embedding table has no rows"));
            }
            Ok((table, ids, rows))
        };
        let open = pairs.iter().map(open).collect::<Result<Vec<_>>>()?;
        let [(words, ids, Rows { cols: n, .. }), ..] = &*open else { return Err(Error::call("embed", "no tables")) };
        let (n, tokens, run) = (*n, ids.elements(), 16 / words.dtype().size());
        let aligned =
            open.iter().all(|(table, _, rows)| [table.start, rows.stride, n].iter().all(|i| i.is_multiple_of(run)));
        Ok(Tables { open, tokens, n, aligned })
    }

    fn words(&self) -> &View {
        &self.open[0].0
    }

    /// A call of the kernel of this name, with the tables as its first parameters.
    fn call(&self, name: &str) -> Result<Call> {
        let call = Call::new(self.words(), &Kernel::new(BINARY, format!("embed_{name}_{}", self.words().dtype())))?;
        Ok((0..MAX_TABLES).fold(call, |call, i| match self.open.get(i) {
            Some((table, ids, rows)) => call.input(table).input(ids).u32(rows.rows).u32(rows.stride),
            None => call.optional_input(None).optional_input(None).u32(0).u32(0),
        }))
    }
}

/// Adds the rows of all tables, those of the first multiplied by `scale`.
pub(super) fn run(pairs: &[(&Tensor, &Tensor)], scale: f32) -> Result<candle_core::Tensor> {
    let tables = Tables::of(pairs)?;
    let (t, n, dtype) = (tables.tokens, tables.n, tables.words().dtype());
    let (kind, run) = if tables.aligned { ("aligned", 16 / dtype.size()) } else { ("unaligned", 1) };
    let y = Call::alloc(tables.words(), t * n, dtype)?;
    tables.call(kind)?.made(&y).numbers(&params![n, scale]).run(Grid::along(t, n.div_ceil(run)))?;
    y.tensor(&[t, n])
}

/// Arguments of the kernel that adds rows and normalizes the sum.
pub(super) struct EmbedNormKernel {
    tables: Tables,
    weight: View,
    bias: Option<View>,
    eps: f32,
}

impl EmbedNormKernel {
    /// `None` unless rows are short enough for a warp, and whole runs.
    pub(super) fn of(op: &EmbedOp, norm: &LayerNorm) -> Result<Option<EmbedNormKernel>> {
        if op.pairs.len() > MAX_TABLES {
            return Ok(None);
        }
        let tables = Tables::of(&op.pairs.iter().map(|(table, ids)| (table, ids)).collect::<Vec<_>>())?;
        let (weight, bias, eps) = norm.parts();
        let (weight, bias) = (View::whole(weight)?, bias.map(View::whole).transpose()?);
        let is_aligned = |view: &View| view.start.is_multiple_of(16 / weight.dtype().size());
        let is_supported =
            tables.aligned && tables.n <= MAX_NORM_ROW && is_aligned(&weight) && bias.as_ref().is_none_or(is_aligned);
        Ok(is_supported.then_some(EmbedNormKernel { tables, weight, bias, eps }))
    }

    pub(super) fn run(&self) -> Result<candle_core::Tensor> {
        let (t, n) = (self.tables.tokens, self.tables.n);
        let y = Call::alloc(self.tables.words(), t * n, self.tables.words().dtype())?;
        let call = self.tables.call(if n <= 512 { "normed_512" } else { "normed_1024" })?;
        let call =
            call.input(&self.weight).optional_input(self.bias.as_ref()).made(&y).numbers(&params![t, n, self.eps]);
        call.run(Grid::of(t.div_ceil(WARPS), 32 * WARPS))?;
        y.tensor(&[t, n])
    }
}
