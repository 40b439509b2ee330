//! The epilogue of a matrix product on the CPU: bias, activation, residual and the one rounding,
//! before sums are stored.
#![allow(unsafe_code, reason = "tasks write disjoint tiles of one output; SIMD lanes")]

use crate::cpu::elem::{Elem, get, put};
use crate::cpu::gemm::{PANEL, Sink};
use crate::cpu::rows::Output;
use crate::cpu::{Kernel, Lanes, math};
use crate::{Activation, Error, Result};

/// Bias, activation and residual of an epilogue.
#[derive(Clone, Copy)]
pub(crate) struct EpilogueParams<'a, T> {
    pub(crate) bias: Option<&'a [T]>,
    pub(crate) activation: Activation,
    /// The shape of the result.
    pub(crate) residual: Option<&'a [T]>,
}

impl<T> EpilogueParams<'_, T> {
    /// Checks the sizes for `rows` × `n` results.
    pub(super) fn check(&self, rows: usize, n: usize) -> Result<()> {
        let (bias, residual) = (self.bias.map(<[T]>::len), self.residual.map(<[T]>::len));
        match (bias.unwrap_or(n), residual.unwrap_or(rows * n)) {
            sizes if sizes == (n, rows * n) => Ok(()),
            sizes => Err(Error::call(
                "linear",
                format!("a bias and a residual of {sizes:?} elements do not fit {rows} rows of {n}"),
            )),
        }
    }
}

/// The epilogue of one part of a weight.
#[derive(Clone, Copy)]
pub(super) struct Epilogue<'a, T> {
    params: EpilogueParams<'a, T>,
    /// The part's first column, and its number of columns.
    first: usize,
    width: usize,
    n: usize,
    out: &'a Output<T>,
}

impl<'a, T: Elem> Epilogue<'a, T> {
    /// The epilogue of columns `first` to `first + width` of `n`. `params` must have been checked
    /// for the rows of `out`.
    pub(super) fn of(
        params: EpilogueParams<'a, T>,
        (first, width): (usize, usize),
        n: usize,
        out: &'a Output<T>,
    ) -> Self {
        Epilogue { params, first, width, n, out }
    }

    /// Two vectors of the bias from column `at` on.
    ///
    /// # Safety
    /// The contract of Lanes; the columns exist.
    #[inline(always)]
    unsafe fn bias<S: Lanes>(&self, at: usize) -> [S::V; 2] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.params.bias {
                Some(bias) => [T::load::<S>(bias.as_ptr().add(at)), T::load::<S>(bias.as_ptr().add(at + S::WIDTH))],
                None => [S::splat(0.0); 2],
            }
        }
    }

    /// Computes `ROWS` rows of two vectors each: enough independent work to hide the latency of
    /// each vector's steps. `sums` has [`PANEL`] elements per row; `first` is the index in y of the
    /// first result.
    ///
    /// # Safety
    /// The contract of Lanes; the columns lie in y and belong to this task.
    #[inline(always)]
    unsafe fn full<S: Lanes, A: Act, const ROWS: usize, const ALL: usize>(
        &self,
        act: A,
        first: usize,
        sums: *const f32,
        bias: [S::V; 2],
    ) {
        const { assert!(ALL == 2 * ROWS) };
        // SAFETY: guaranteed by the caller; `EpilogueParams::check` has checked that the residual
        // is as long as y.
        unsafe {
            let mut v = [S::splat(0.0); ALL];
            for (j, v) in v.iter_mut().enumerate() {
                *v = S::add(S::load(sums.add(j / 2 * PANEL + j % 2 * S::WIDTH)), bias[j % 2]);
            }
            v = act.on::<S, T, ALL>(v);
            if let Some(residual) = self.params.residual {
                let residual = residual.as_ptr().add(first);
                for (j, v) in v.iter_mut().enumerate() {
                    *v = S::add(*v, T::load::<S>(residual.add(j / 2 * self.n + j % 2 * S::WIDTH)));
                }
            }
            let y = self.out.at(first);
            for r in 0..ROWS {
                T::store_two::<S>(y.add(r * self.n), [v[2 * r], v[2 * r + 1]]);
            }
        }
    }

    /// Computes a row of a partial panel, which has only `columns`.
    ///
    /// # Safety
    /// As for [`Epilogue::full`].
    #[inline(always)]
    unsafe fn part<S: Lanes, A: Act>(
        &self,
        act: A,
        (row, column): (usize, usize),
        sums: &[f32; PANEL],
        columns: usize,
    ) {
        for i in (0..columns).step_by(S::WIDTH) {
            let lanes = (columns - i).min(S::WIDTH);
            let first = row * self.n + column + i;
            // SAFETY: guaranteed by the caller.
            unsafe {
                let mut v = get::<S, f32>(sums, i, S::WIDTH, 0.0);
                if let Some(bias) = self.params.bias {
                    v = S::add(v, get::<S, T>(bias, column + i, lanes, 0.0));
                }
                [v] = act.on::<S, T, 1>([v]);
                if let Some(residual) = self.params.residual {
                    v = S::add(v, get::<S, T>(residual, first, lanes, 0.0));
                }
                put::<S, T>(self.out.part(first, lanes), 0, lanes, v);
            }
        }
    }
}

impl<T: Elem> Sink for Epilogue<'_, T> {
    #[inline(always)]
    fn take<S: Lanes>(&mut self, row: usize, column: usize, sums: &[f32; PANEL]) {
        self.take_rows::<S>(row, column, std::slice::from_ref(sums));
    }

    #[inline(always)]
    fn take_rows<S: Lanes>(&mut self, row: usize, column: usize, rows: &[[f32; PANEL]]) {
        S::outlined(Finish { epilogue: *self, act: self.params.activation, row, column, rows });
    }

    #[inline(always)]
    fn take_between<S: Lanes>(&mut self, row: usize, column: usize, rows: &[[f32; PANEL]]) {
        let epilogue = *self;
        match self.params.activation {
            Activation::None => Finish { epilogue, act: Plain, row, column, rows }.run::<S>(),
            Activation::Gelu => Finish { epilogue, act: Gelu, row, column, rows }.run::<S>(),
            _ => self.take_rows::<S>(row, column, rows),
        }
    }
}

/// An activation, at compile time or at run time.
trait Act: Copy {
    /// # Safety
    /// The contract of Lanes.
    unsafe fn on<S: Lanes, T: Elem, const N: usize>(self, v: [S::V; N]) -> [S::V; N];
}

#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only AMX uses it"))]
struct Plain;

#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only AMX uses it"))]
struct Gelu;

impl Act for Plain {
    #[inline(always)]
    unsafe fn on<S: Lanes, T: Elem, const N: usize>(self, v: [S::V; N]) -> [S::V; N] {
        v
    }
}

impl Act for Gelu {
    #[inline(always)]
    unsafe fn on<S: Lanes, T: Elem, const N: usize>(self, v: [S::V; N]) -> [S::V; N] {
        // SAFETY: guaranteed by the caller.
        unsafe { math::activate::<S, N>(Activation::Gelu, T::TYPE, v) }
    }
}

impl Act for Activation {
    #[inline(always)]
    unsafe fn on<S: Lanes, T: Elem, const N: usize>(self, v: [S::V; N]) -> [S::V; N] {
        // SAFETY: guaranteed by the caller.
        unsafe { math::activate::<S, N>(self, T::TYPE, v) }
    }
}

/// Applies the epilogue to rows of a tile.
struct Finish<'a, T, A> {
    epilogue: Epilogue<'a, T>,
    act: A,
    row: usize,
    column: usize,
    rows: &'a [[f32; PANEL]],
}

impl<T: Elem, A: Act> Kernel for Finish<'_, T, A> {
    type Output = ();
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Finish { epilogue, act, row, column, rows } = self;
        let columns = PANEL.min(epilogue.width - column);
        let column = epilogue.first + column;
        // SAFETY: row < m and column + columns ≤ n; a block of rows and a run of panels belong to
        // one task. Isa::run fulfils the contract of Lanes.
        unsafe {
            if columns < PANEL {
                for (r, sums) in rows.iter().enumerate() {
                    epilogue.part::<S, A>(act, (row + r, column), sums, columns);
                }
                return;
            }
            for i in (0..PANEL).step_by(2 * S::WIDTH) {
                let bias = epilogue.bias::<S>(column + i);
                let (mut first, mut sums) = (row * epilogue.n + column + i, rows.as_ptr().cast::<f32>().add(i));
                let mut left = rows.len();
                // As many rows at once as fit the registers.
                while S::WIDTH == 16 && left >= 4 {
                    epilogue.full::<S, A, 4, 8>(act, first, sums, bias);
                    (first, sums, left) = (first + 4 * epilogue.n, sums.add(4 * PANEL), left - 4);
                }
                while left >= 2 {
                    epilogue.full::<S, A, 2, 4>(act, first, sums, bias);
                    (first, sums, left) = (first + 2 * epilogue.n, sums.add(2 * PANEL), left - 2);
                }
                if left == 1 {
                    epilogue.full::<S, A, 1, 2>(act, first, sums, bias);
                }
            }
        }
    }
}
