//! Launches `kernel.metal`, part by part: a few rows by SIMD-groups that read W once, more rows in
//! tiles.

use super::weight::Data;
use super::{LinearOp, product};
use crate::launch::metal::buffers::DeviceBuffer;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;
use crate::{Error, Result, quant};

const SOURCE: &str = kernels!("product.metal");

/// Most rows of x per SIMD-group. With more, the sums would no longer fit the registers.
const MAX_GEMV_ROWS: usize = 8;

/// Columns that a SIMD-group computes for few rows, and SIMD-groups of a threadgroup.
const COLUMNS: usize = 4;
const SIMDS: usize = 2;

/// Numbers of results from which there are 128 tiles of 64 × 64, and 32 of 64 × 32: larger tiles
/// read less per sum, but too few of them would leave cores idle.
const LARGE: usize = 1 << 19;
const MIDDLE: usize = 1 << 16;

/// Tiles of columns per band: `BAND` in the kernel.
const BAND: usize = 4;

/// [`product::Product`] with Metal's tensors.
pub(crate) type Product<'a> = product::Product<'a, View, DeviceBuffer>;

impl Product<'_> {
    /// The fields of `Product` in `product.metal`; `bytes`: of a row of W, if that is in a block
    /// format.
    pub(crate) fn sizes(&self, bytes: usize) -> Result<[u32; 8]> {
        let x = self.x.rows()?;
        let residual = self.residual.map_or(Ok(0), |r| r.rows().map(|r| r.stride))?;
        let (n, first) = (self.columns.len(), self.columns.start);
        Ok(params![x.rows, n, x.cols, x.stride, residual, self.width, first, bytes])
    }

    /// Kernel `name` of `source` for this product; `fours`: whether it may read four elements at
    /// once.
    pub(crate) fn kernel(&self, source: &'static str, name: String, fours: bool) -> Kernel {
        let kernel = Kernel::new(source, name).flag(self.bias.is_some()).flag(self.residual.is_some());
        kernel.number(self.activation as u16).flag(fours)
    }
}

pub(super) fn run(op: &LinearOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let bias = op.bias.as_ref().map(View::whole).transpose()?;
    let residual = op.residual.as_ref().map(View::of).transpose()?;
    let (rows, width) = (x.rows()?.rows, op.weight.n);
    let y = Call::alloc(&x, rows * width, op.x.dtype())?;
    let mut first = 0;
    for part in &*op.weight.parts {
        let columns = first..first + part.n;
        let (bias, residual) = (bias.as_ref(), residual.as_ref());
        let p = Product { x: &x, bias, activation: op.activation, residual, y: &y, width, columns };
        match &part.data {
            Data::Rows(w) if w.dtype() == op.x.dtype() => multiply(&p, &View::whole(w)?)?,
            Data::Raw(quant, blocks) => quant::metal::multiply(&p, *quant, &View::whole(blocks)?)?,
            other => return Err(Error::call("linear", format!("no kernel for a weight in {other:?} on Metal"))),
        }
        first += part.n;
    }
    y.tensor(&[&op.x.dims()[..op.x.dims().len() - 1], &[width]].concat())
}

/// Multiplies by a part in floats, `[n, k]`, in the dtype of the activations.
fn multiply(p: &Product<'_>, w: &View) -> Result<()> {
    let (x, n) = (p.x.rows()?, p.columns.len());
    let (name, grid) = shape(x.rows, n);
    let fours = p.x.in_fours()? && w.in_fours()?;
    let kernel = p.kernel(SOURCE, format!("linear_{name}_{}", p.x.dtype()), fours);
    let sizes = p.sizes(0)?;
    Call::new(p.x, &kernel)?
        .input(p.x)
        .input(w)
        .input_or(p.bias, p.x)
        .input_or(p.residual, p.x)
        .result(p.y)
        .numbers(&sizes)
        .run(grid)
}

/// The kernel for this number of rows and columns, and its threadgroups.
fn shape(rows: usize, n: usize) -> (String, Grid) {
    if rows <= MAX_GEMV_ROWS {
        let groups = [n.div_ceil(COLUMNS * SIMDS), rows.min(1), 1];
        return (format!("gemv{}", rows.next_power_of_two()), Grid { groups, threads: 32 * SIMDS });
    }
    let (tall, wide) = match rows * n {
        LARGE.. if rows > 32 => (64, 64),
        MIDDLE.. if rows > 32 => (64, 32),
        _ => (32, 32),
    };
    let groups = [rows.div_ceil(tall) * BAND, n.div_ceil(wide).div_ceil(BAND), 1];
    (format!("tile{tall}x{wide}"), Grid { groups, threads: 128 })
}
