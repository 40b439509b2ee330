//! A complete matrix product without an epilogue, for the tests.
#![allow(unsafe_code, reason = "tasks write disjoint parts of one output")]

use super::{Activations, Packed, Split, multiply};
use crate::cpu::gemm::{PANEL, Sink};
use crate::cpu::rows::Output;
use crate::cpu::{Isa, Kernel, Lanes, team};
use std::borrow::Cow;
use std::ops::Range;

/// `out` `[m, n]` = `x` `[m, k]` · Wᵀ.
///
/// # Panics
/// If the size of `x` or `out` is wrong.
pub(super) fn matmul(isa: Isa, w: &Packed, x: &[f32], m: usize, out: &mut [f32]) {
    let (n, k) = (w.n(), w.k());
    assert!(x.len() == m * k && out.len() == m * n, "{m} rows of {k} and of {n}, not {} and {}", x.len(), out.len());
    let x = Activations::new(isa, w.quant(), m, k, &|i| Cow::Borrowed(&x[i * k..][..k]));
    let split = Split::of(&x, w);
    let out = Output::over(out);
    team::each(split.tasks(), |i| {
        let (tile, columns) = split.task(i);
        isa.run(MatmulTask { isa, x: &x, w, tile, columns, sink: Plain { n, out: &out } });
    });
}

/// A task of [`matmul`].
struct MatmulTask<'a> {
    isa: Isa,
    x: &'a Activations,
    w: &'a Packed,
    tile: usize,
    columns: Range<usize>,
    sink: Plain<'a>,
}

impl Kernel for MatmulTask<'_> {
    type Output = ();
    const BF16: bool = false;

    #[inline(always)]
    fn run<S: Lanes>(mut self) {
        multiply::<S>(self.isa, self.x, self.w, self.tile, self.columns, &mut self.sink);
    }
}

/// Sink that stores the sums unchanged.
struct Plain<'a> {
    n: usize,
    out: &'a Output<f32>,
}

impl Sink for Plain<'_> {
    #[inline(always)]
    fn take<S: Lanes>(&mut self, row: usize, column: usize, sums: &[f32; PANEL]) {
        let columns = PANEL.min(self.n - column);
        // SAFETY: row < m and column + columns ≤ n; a tile of rows and a run of columns belong to
        // one task.
        let out = unsafe { self.out.part(row * self.n + column, columns) };
        out.copy_from_slice(&sums[..columns]);
    }
}
