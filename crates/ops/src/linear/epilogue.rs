//! Bias, activation, residual and the one rounding: what becomes of sums before they are written.
#![allow(unsafe_code, reason = "tasks write disjoint tiles of one output; SIMD lanes")]

use crate::cpu::elem::{Elem, get, put};
use crate::cpu::gemm::{PANEL, Sink};
use crate::cpu::rows::Output;
use crate::cpu::{Kernel, Lanes, math};
use crate::{Activation, Error, Result};

/// What follows a sum of products.
#[derive(Clone, Copy)]
pub(crate) struct Then<'a, T> {
    pub(crate) bias: Option<&'a [T]>,
    pub(crate) activation: Activation,
    /// As many elements as the result.
    pub(crate) residual: Option<&'a [T]>,
}

impl<T> Then<'_, T> {
    /// Whether all of it is there, for `rows` of `n` results.
    pub(super) fn check(&self, rows: usize, n: usize) -> Result<()> {
        let (bias, residual) = (self.bias.map(<[T]>::len), self.residual.map(<[T]>::len));
        match (bias.unwrap_or(n), residual.unwrap_or(rows * n)) {
            sizes if sizes == (n, rows * n) => Ok(()),
            sizes => Err(Error::call("linear", format!("a bias and a residual of {sizes:?} for {rows} rows of {n}"))),
        }
    }
}

/// The results of one part of a weight.
#[derive(Clone, Copy)]
pub(super) struct Epilogue<'a, T> {
    then: Then<'a, T>,
    /// The part's first column, and how many it has.
    first: usize,
    width: usize,
    n: usize,
    out: &'a Output<T>,
}

impl<'a, T: Elem> Epilogue<'a, T> {
    /// Of columns `first` on, `width` of `n`. `then` has been checked for as many rows as `out` has.
    pub(super) fn of(then: Then<'a, T>, (first, width): (usize, usize), n: usize, out: &'a Output<T>) -> Self {
        Epilogue { then, first, width, n, out }
    }

    /// Two vectors of the bias from column `at` on.
    ///
    /// # Safety
    /// The contract of Lanes; the columns are there.
    #[inline(always)]
    unsafe fn bias<S: Lanes>(&self, at: usize) -> [S::V; 2] {
        // SAFETY: the caller's.
        unsafe {
            match self.then.bias {
                Some(bias) => [T::load::<S>(bias.as_ptr().add(at)), T::load::<S>(bias.as_ptr().add(at + S::WIDTH))],
                None => [S::splat(0.0); 2],
            }
        }
    }

    /// `ROWS` rows by two vectors: enough at once to keep the units busy while each vector waits for its own last step. `sums` are
    /// [`PANEL`] from row to row, `first` is the element of y where the first of them goes.
    ///
    /// # Safety
    /// The contract of Lanes; the columns lie in y, and belong to this task.
    #[inline(always)]
    unsafe fn whole<S: Lanes, A: Act, const ROWS: usize, const ALL: usize>(
        &self,
        act: A,
        first: usize,
        sums: *const f32,
        bias: [S::V; 2],
    ) {
        const { assert!(ALL == 2 * ROWS) };
        // SAFETY: the caller's; `Then::check` has seen a residual of as many elements as y.
        unsafe {
            let mut v = [S::splat(0.0); ALL];
            for (j, v) in v.iter_mut().enumerate() {
                *v = S::add(S::load(sums.add(j / 2 * PANEL + j % 2 * S::WIDTH)), bias[j % 2]);
            }
            v = act.on::<S, T, ALL>(v);
            if let Some(residual) = self.then.residual {
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

    /// A row of a panel that has only `columns`.
    ///
    /// # Safety
    /// As above.
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
            // SAFETY: the caller's.
            unsafe {
                let mut v = get::<S, f32>(sums, i, S::WIDTH, 0.0);
                if let Some(bias) = self.then.bias {
                    v = S::add(v, get::<S, T>(bias, column + i, lanes, 0.0));
                }
                [v] = act.on::<S, T, 1>([v]);
                if let Some(residual) = self.then.residual {
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
        S::apart(Finish { epilogue: *self, act: self.then.activation, row, column, rows });
    }

    #[inline(always)]
    fn take_between<S: Lanes>(&mut self, row: usize, column: usize, rows: &[[f32; PANEL]]) {
        let epilogue = *self;
        match self.then.activation {
            Activation::None => Finish { epilogue, act: Plain, row, column, rows }.run::<S>(),
            Activation::Gelu => Finish { epilogue, act: Gelu, row, column, rows }.run::<S>(),
            _ => self.take_rows::<S>(row, column, rows),
        }
    }
}

/// An activation, known to the compiler or not.
trait Act: Copy {
    /// # Safety
    /// The contract of Lanes.
    unsafe fn on<S: Lanes, T: Elem, const N: usize>(self, v: [S::V; N]) -> [S::V; N];
}

#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only tiles have use for it"))]
struct Plain;

#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only tiles have use for it"))]
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
        // SAFETY: the caller's.
        unsafe { math::activate::<S, N>(Activation::Gelu, T::TYPE, v) }
    }
}

impl Act for Activation {
    #[inline(always)]
    unsafe fn on<S: Lanes, T: Elem, const N: usize>(self, v: [S::V; N]) -> [S::V; N] {
        // SAFETY: the caller's.
        unsafe { math::activate::<S, N>(self, T::TYPE, v) }
    }
}

/// Rows of a tile through the epilogue.
struct Finish<'a, T, A> {
    epilogue: Epilogue<'a, T>,
    act: A,
    row: usize,
    column: usize,
    rows: &'a [[f32; PANEL]],
}

impl<T: Elem, A: Act> Kernel for Finish<'_, T, A> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Finish { epilogue, act, row, column, rows } = self;
        let columns = PANEL.min(epilogue.width - column);
        let column = epilogue.first + column;
        // SAFETY: row < m and column + columns ≤ n; a block of rows and a run of panels belong to one task. The contract of
        // Lanes is kept by Isa::run.
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
                // As many at once as there are registers for.
                while S::WIDTH == 16 && left >= 4 {
                    epilogue.whole::<S, A, 4, 8>(act, first, sums, bias);
                    (first, sums, left) = (first + 4 * epilogue.n, sums.add(4 * PANEL), left - 4);
                }
                while left >= 2 {
                    epilogue.whole::<S, A, 2, 4>(act, first, sums, bias);
                    (first, sums, left) = (first + 2 * epilogue.n, sums.add(2 * PANEL), left - 2);
                }
                if left == 1 {
                    epilogue.whole::<S, A, 1, 2>(act, first, sums, bias);
                }
            }
        }
    }
}
