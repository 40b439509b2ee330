//! The product of [`crate::linear`] with another epilogue: a task owns a range of panels for all
//! tokens of a sequence, and keeps the maximum or the sum of each column instead of writing rows.
#![allow(unsafe_code, reason = "tasks write disjoint parts of one output; SIMD lanes")]

use super::{Splade, SpladeOp};
use crate::Result;
use crate::cpu::elem::{Elem, get, put, vectors, with_elem};
use crate::cpu::gemm::{BLOCK, GemmScratch, PANEL, Panels, Sink, multiply};
use crate::cpu::rows::{Output, Reading, Rows};
use crate::cpu::{Isa, Kernel, Lanes, math, team};
use crate::tensor::host;
use std::cell::RefCell;
use std::ops::Range;

/// Panels of a task: 256 columns, so that even a vocabulary of 30,000 gives every thread tasks.
const PANELS: usize = 8;

/// Logarithms of a task: some tens of microseconds.
const LOGS: usize = 2048;

thread_local! {
    /// Scratch memory of each worker, reused by later calls.
    static ROOM: RefCell<GemmScratch> = RefCell::default();
}

pub(super) fn run(op: &SpladeOp, isa: Isa) -> Result<candle_core::Tensor> {
    let weight = op.weight.clone().one_panel()?;
    let (sequences, n) = (op.segments.count(), weight.n());
    with_elem!("splade", op.x.dtype(), T => {
        let (x, w) = (Reading::of(&op.x)?, Reading::of(weight.data()?)?);
        let bias = op.bias.as_ref().map(Reading::of).transpose()?;
        let bias = bias.as_ref().map(|b| b.slice::<T>()).transpose()?;
        let (x, b) = (x.rows::<T>()?, Panels::of(w.slice::<T>()?, weight.k(), n));
        // Not −∞, from which `math::larger` would make NaN.
        let mut y = vec![f32::MIN; sequences * n];
        if op.options.sum {
            y.fill(0.0);
        }
        let out = Output::over(&mut y);
        let runs = n.div_ceil(PANELS * PANEL);
        // The sequences of one range follow each other, so that its panels stay in a cache.
        team::each(runs * sequences, |task| {
            let (run, sequence) = (task / sequences, task % sequences);
            ROOM.with_borrow_mut(|room| {
                room.isa = isa;
                let sink = Columns { bias, options: op.options, n, first: sequence * n, out: &out };
                isa.run(Task { x, b, rows: op.segments.lengths(op.scope).range(sequence), panels: run * PANELS..(run + 1) * PANELS, room, sink });
            });
        });
        if !op.options.sum {
            // NaN stays NaN.
            team::each_chunk_mut(&mut y, LOGS, |_, part| {
                part.iter_mut().filter(|v| !v.is_nan()).for_each(|v| *v = op.options.weigh(f64::from(*v)) as f32);
            });
        }
        host(y, &[sequences, n])
    })
}

struct Task<'a, T> {
    x: Rows<'a, T>,
    b: Panels<'a, T>,
    rows: Range<usize>,
    panels: Range<usize>,
    room: &'a mut GemmScratch,
    sink: Columns<'a, T>,
}

impl<T: Elem> Kernel for Task<'_, T> {
    type Output = ();
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Task { x, b, rows, panels, room, mut sink } = self;
        let mut first = rows.start;
        while first < rows.end {
            let block = first..(first + BLOCK).min(rows.end);
            multiply::<S, T, T>(x, b, block, panels.clone(), room, &mut sink);
            first += BLOCK;
        }
    }
}

/// The columns of one sequence so far: maxima of logits, or sums of weights.
struct Columns<'a, T> {
    bias: Option<&'a [T]>,
    options: Splade,
    n: usize,
    /// Index in y where the sequence begins.
    first: usize,
    out: &'a Output<f32>,
}

impl<T: Elem> Sink for Columns<'_, T> {
    #[inline(always)]
    fn take<S: Lanes>(&mut self, _: usize, column: usize, sums: &[f32; PANEL]) {
        let columns = PANEL.min(self.n - column);
        // SAFETY: these columns of this sequence belong to one task.
        let y = unsafe { self.out.part(self.first + column, columns) };
        vectors!(S, columns, |i, lanes| {
            let mut v = get::<S, f32>(sums, i, lanes, 0.0);
            // SAFETY: the contract of Lanes, kept by Isa::run.
            unsafe {
                if let Some(bias) = self.bias {
                    v = S::add(v, get::<S, T>(bias, column + i, lanes, 0.0));
                }
                let so_far = get::<S, f32>(y, i, lanes, 0.0);
                if self.options.sum {
                    let mut weights = [0f32; PANEL];
                    put::<S, f32>(&mut weights, 0, lanes, v);
                    // One scalar logarithm per logit: few models sum.
                    for w in &mut weights[..lanes] {
                        *w = if w.is_nan() { *w } else { self.options.weigh(f64::from(*w)) as f32 };
                    }
                    v = S::add(so_far, get::<S, f32>(&weights, 0, lanes, 0.0));
                } else {
                    v = math::larger::<S>(so_far, v);
                }
            }
            put::<S, f32>(y, i, lanes, v);
        });
    }
}
