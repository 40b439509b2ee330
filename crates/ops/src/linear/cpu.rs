//! Packing, and the product over panels with bias, activation and residual in the epilogue.
#![allow(unsafe_code, reason = "tasks write disjoint tiles of one output; SIMD lanes")]

use super::{Layout, LinearOp, Weight, layout_in};
use crate::cpu::elem::{Elem, get, put, vectors, with_elem};
use crate::cpu::gemm::{BLOCK, PANEL, Panels, Sink, multiply, packed_len};
use crate::cpu::rows::{Output, Reading, Rows};
use crate::cpu::{Isa, Kernel, Lanes, math};
use crate::tensor::host;
use crate::weights::Raw;
use crate::{Activation, Place, Result, Tensor, Weights};
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;

/// Matrices of `n` × `k` from a file, below each other, in the layout of `w`'s place.
pub(super) fn pack(raws: &[Raw<'_>], k: usize, n: usize, w: &Weights) -> Result<Weight> {
    with_elem!("linear", w.dtype(), T => {
        laid_out::<T>(raws.len() * n, k, w, &|row, out| raws[row / n].read(row % n * k, out))
    })
}

/// Rows `rows` of a file's matrix of `columns` columns as outputs or, `turned`, as inputs.
pub(super) fn pack_rows(
    raw: &Raw<'_>,
    columns: usize,
    rows: Range<usize>,
    turned: bool,
    w: &Weights,
) -> Result<Weight> {
    let first = rows.start;
    with_elem!("linear", w.dtype(), T => {
        if !turned {
            return laid_out::<T>(rows.len(), columns, w, &|row, out| raw.read((first + row) * columns, out));
        }
        laid_out::<T>(columns, rows.len(), w, &|column, out| {
            out.iter_mut().enumerate().for_each(|(i, v)| raw.read((first + i) * columns + column, std::slice::from_mut(v)));
        })
    })
}

/// A matrix of `n` × `k` whose rows `read` gives, in the layout of `w`'s place.
fn laid_out<T: Elem>(n: usize, k: usize, w: &Weights, read: &(dyn Fn(usize, &mut [T]) + Sync)) -> Result<Weight> {
    let layout = layout_in(w.place());
    let dims = match layout {
        Layout::Rows => vec![n, k],
        Layout::Panels => vec![packed_len(k, n)],
    };
    let data = Tensor::upload(&dims, w.dtype(), w.place(), || {
        let values = match layout {
            Layout::Rows => {
                let mut all = vec![T::default(); n * k];
                all.chunks_mut(k.max(1)).enumerate().for_each(|(row, out)| read(row, out));
                all
            }
            Layout::Panels => panels::<T>(n, k, read),
        };
        host(values, &dims)
    })?;
    Ok(Weight { data, layout, k, n })
}

/// Vectors of `n` from a file, one after another.
pub(super) fn join(raws: &[Raw<'_>], n: usize, w: &Weights) -> Result<Tensor> {
    let dims = [raws.len() * n];
    Tensor::upload(&dims, w.dtype(), w.place(), || {
        with_elem!("linear", w.dtype(), T => {
            let mut all = vec![T::default(); dims[0]];
            raws.iter().zip(all.chunks_mut(n.max(1))).for_each(|(raw, out)| raw.read(0, out));
            host(all, &dims)
        })
    })
}

/// The same weight on the CPU in panels.
pub(super) fn repack(weight: Weight) -> Result<Weight> {
    if weight.layout == Layout::Panels {
        return Ok(weight);
    }
    let dims = [packed_len(weight.k, weight.n)];
    let data = with_elem!("linear", weight.data.dtype(), T => {
        let reading = Reading::of(&weight.data)?;
        let rows = reading.rows::<T>()?;
        let values = panels::<T>(weight.n, weight.k, |row, out| out.copy_from_slice(rows.row(row)));
        Tensor::upload(&dims, T::TYPE, &Place::cpu(), || host(values, &dims))
    })?;
    Ok(Weight { data, layout: Layout::Panels, ..weight })
}

/// `[n, k]` from panels again: only the composed form on the CPU asks for it, when it is forced.
pub(super) fn unpack(weight: &Weight) -> Result<candle_core::Tensor> {
    let (k, n) = (weight.k, weight.n);
    with_elem!("linear", weight.data.dtype(), T => {
        let reading = Reading::of(&weight.data)?;
        let panels = reading.slice::<T>()?;
        let at = |i: usize| panels[(i / k / PANEL * k + i % k) * PANEL + i / k % PANEL];
        host((0..n * k).map(at).collect::<Vec<T>>(), &[n, k])
    })
}

/// `[ceil(rows / PANEL)][k][PANEL]`, zeros behind the last row.
fn panels<T: Elem>(rows: usize, k: usize, read: impl Fn(usize, &mut [T]) + Sync) -> Vec<T> {
    let mut out = vec![T::default(); packed_len(k, rows)];
    if k == 0 {
        return out;
    }
    out.par_chunks_mut(k * PANEL).enumerate().for_each_init(
        || vec![T::default(); k],
        |row, (panel, out)| {
            for c in 0..PANEL.min(rows - panel * PANEL) {
                read(panel * PANEL + c, row);
                row.iter().enumerate().for_each(|(i, v)| out[i * PANEL + c] = *v);
            }
        },
    );
    out
}

thread_local! {
    /// Rows of x in f32, kept from call to call by each worker.
    static WIDE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn run(op: &LinearOp, isa: Isa) -> Result<candle_core::Tensor> {
    let weight = repack(op.weight.clone())?;
    with_elem!("linear", op.x.dtype(), T => {
        let (x, w) = (Reading::of(&op.x)?, Reading::of(&weight.data)?);
        let bias = op.bias.as_ref().map(Reading::of).transpose()?;
        let bias = bias.as_ref().map(|b| b.slice::<T>()).transpose()?;
        let residual = op.residual.as_ref().map(Reading::of).transpose()?;
        let residual = residual.as_ref().map(|r| r.slice::<T>()).transpose()?;
        let b = Panels::of(w.slice::<T>()?, weight.k, weight.n);
        let y = product(isa, x.rows::<T>()?, b, Then { bias, activation: op.activation, residual });
        let mut dims = op.x.dims().to_vec();
        dims.pop();
        dims.push(weight.n);
        host(y, &dims)
    })
}

/// What follows a sum of products.
#[derive(Clone, Copy)]
pub(crate) struct Then<'a, T> {
    pub(crate) bias: Option<&'a [T]>,
    pub(crate) activation: Activation,
    /// As many elements as the result.
    pub(crate) residual: Option<&'a [T]>,
}

/// Splits the output into tasks of at most BLOCK rows, and of fewer columns when rows alone would leave threads idle.
pub(crate) fn product<T: Elem>(isa: Isa, x: Rows<'_, T>, b: Panels<'_, T>, then: Then<'_, T>) -> Vec<T> {
    let mut y = vec![T::default(); x.rows * b.n];
    let panels = b.n.div_ceil(PANEL);
    let blocks = x.rows.div_ceil(BLOCK).max(1);
    let wanted = 3 * rayon::current_num_threads();
    let columns = wanted.div_ceil(blocks).clamp(1, panels.max(1));
    let per_task = panels.div_ceil(columns).max(1);
    let out = Output::over(&mut y);
    (0..blocks * columns).into_par_iter().for_each(|task| {
        let (block, column) = (task / columns, task % columns);
        WIDE.with_borrow_mut(|wide| {
            isa.run(Task {
                x,
                b,
                rows: block * BLOCK..(block + 1) * BLOCK,
                panels: column * per_task..(column + 1) * per_task,
                wide,
                epilogue: Epilogue { then, n: b.n, out: &out },
            });
        });
    });
    y
}

struct Task<'a, T> {
    x: Rows<'a, T>,
    b: Panels<'a, T>,
    rows: Range<usize>,
    panels: Range<usize>,
    wide: &'a mut Vec<f32>,
    epilogue: Epilogue<'a, T>,
}

impl<T: Elem> Kernel for Task<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Task { x, b, rows, panels, wide, mut epilogue } = self;
        multiply::<S, T, T>(x, b, rows, panels, wide, &mut epilogue);
    }
}

/// Bias, activation, residual and the one rounding.
struct Epilogue<'a, T> {
    then: Then<'a, T>,
    n: usize,
    out: &'a Output<T>,
}

impl<T: Elem> Sink for Epilogue<'_, T> {
    #[inline(always)]
    fn take<S: Lanes>(&mut self, row: usize, column: usize, sums: &[f32; PANEL]) {
        let columns = PANEL.min(self.n - column);
        // SAFETY: row < m and column + columns ≤ n; a block of rows and a run of panels belong to one task.
        let y = unsafe { self.out.part(row * self.n + column, columns) };
        vectors!(S, columns, |i, lanes| {
            let mut v = get::<S, f32>(sums, i, lanes, 0.0);
            // SAFETY: the contract of Lanes, kept by Isa::run.
            unsafe {
                if let Some(bias) = self.then.bias {
                    v = S::add(v, get::<S, T>(bias, column + i, lanes, 0.0));
                }
                v = math::activate::<S>(self.then.activation, v);
                if let Some(residual) = self.then.residual {
                    v = S::add(v, get::<S, T>(residual, row * self.n + column + i, lanes, 0.0));
                }
                put::<S, T>(y, i, lanes, v);
            }
        });
    }
}
