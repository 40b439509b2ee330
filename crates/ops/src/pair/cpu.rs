//! A row at a time, in one pass over its elements.
#![allow(unsafe_code, reason = "SIMD lanes; tasks write disjoint parts of one result")]

use super::{Combine, PairOp};
use crate::cpu::elem::{Elem, get, put, vectors, with_elem};
use crate::cpu::rows::{Output, Reading, fill_rows};
use crate::cpu::{Isa, Kernel, Lanes, team};
use crate::ladder::Op;
use crate::tensor::{host, room};
use crate::{Error, Result, threads};

pub(super) fn run(op: &PairOp, isa: Isa) -> Result<candle_core::Tensor> {
    let (rows, n, combine) = (op.rows(), op.n(), op.combine);
    with_elem!("pair", op.x().dtype(), T => {
        let open = op.operands.iter().map(|(t, i)| Ok((Reading::of(t)?, Reading::of(i)?)));
        let open = open.collect::<Result<Vec<_>>>()?;
        let operands = open.iter().map(|(t, i)| Ok((t.rows::<T>()?, i.slice::<u32>()?))).collect::<Result<Vec<_>>>()?;
        for (matrix, ids) in &operands {
            if let Some(id) = ids.iter().find(|id| **id as usize >= matrix.rows) {
                return Err(Error::call("pair", format!("row {id} is beyond the matrix of {} rows", matrix.rows)));
            }
        }
        let of = |operand: usize, row: usize| {
            operands.get(operand).map_or(&[][..], |(matrix, ids)| matrix.row(ids[row] as usize))
        };
        let of_row = |row: usize| [of(0, row), of(1, row), of(2, row)];
        if !combine.reduces() {
            let y = fill_rows::<T>(rows, n, 0, |i, out, _| isa.run(Elements { combine, rows: of_row(i), out }));
            return host(y, &[rows, n]);
        }
        let offsets = op.offsets.as_ref().map(Reading::of).transpose()?;
        let offsets = offsets.as_ref().map(|t| t.slice::<f32>()).transpose()?;
        let mut y = room::<f32>(rows);
        let out = Output::over(&mut y);
        // A few thousand elements per task, and no more tasks than balance the threads.
        let chunk = (4096 / n.max(1)).max(rows.div_ceil(8 * threads::count())).max(1);
        team::each(rows.div_ceil(chunk), |task| {
            for i in task * chunk..rows.min((task + 1) * chunk) {
                let sum = isa.run(Sum { combine, rows: of_row(i) });
                let offset = offsets.map_or(0.0, |offsets| offsets[operands[2].1[i] as usize]);
                // SAFETY: the row lies in the result and belongs to this task.
                unsafe { out.part(i, 1)[0] = sum + offset };
            }
        });
        host(y, &[rows, 1])
    })
}

/// A row of as many elements.
struct Elements<'a, T> {
    combine: Combine,
    rows: [&'a [T]; 3],
    out: &'a mut [T],
}

impl<T: Elem> Kernel for Elements<'_, T> {
    type Output = ();
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let [a, b, c] = self.rows;
        // SAFETY: the contract of Lanes, kept by Isa::run.
        unsafe {
            vectors!(S, a.len(), |i, lanes| {
                let (x, y) = (get::<S, T>(a, i, lanes, 0.0), get::<S, T>(b, i, lanes, 0.0));
                let v = match self.combine {
                    Combine::ReluSum if c.is_empty() => relu::<S>(S::add(x, y)),
                    Combine::ReluSum => relu::<S>(S::add(S::add(x, y), get::<S, T>(c, i, lanes, 0.0))),
                    _ => S::mul(x, y),
                };
                put::<S, T>(self.out, i, lanes, v);
            });
        }
    }
}

/// A row that becomes one number.
struct Sum<'a, T> {
    combine: Combine,
    rows: [&'a [T]; 3],
}

impl<T: Elem> Kernel for Sum<'_, T> {
    type Output = f32;
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(self) -> f32 {
        let a = self.rows[0];
        // SAFETY: the contract of Lanes, kept by Isa::run.
        unsafe {
            // Two independent sums, because an addition takes four cycles and three loads two.
            let mut sums = [S::splat(0.0); 2];
            let many = a.len() / (2 * S::WIDTH) * (2 * S::WIDTH);
            for first in (0..many).step_by(2 * S::WIDTH) {
                sums[0] = self.add::<S>(first, S::WIDTH, sums[0]);
                sums[1] = self.add::<S>(first + S::WIDTH, S::WIDTH, sums[1]);
            }
            vectors!(S, a.len() - many, |i, lanes| { sums[0] = self.add::<S>(many + i, lanes, sums[0]) });
            S::sum(S::add(sums[0], sums[1]))
        }
    }
}

impl<T: Elem> Sum<'_, T> {
    /// Adds the terms of these elements.
    ///
    /// # Safety
    /// The contract of Lanes.
    #[inline(always)]
    unsafe fn add<S: Lanes>(&self, i: usize, lanes: usize, sum: S::V) -> S::V {
        let [a, b, c] = self.rows;
        let (x, y) = (get::<S, T>(a, i, lanes, 0.0), get::<S, T>(b, i, lanes, 0.0));
        // SAFETY: the caller's.
        unsafe {
            match self.combine {
                Combine::Score => S::fma(relu::<S>(S::add(x, y)), get::<S, T>(c, i, lanes, 0.0), sum),
                _ => S::fma(x, y, sum),
            }
        }
    }
}

/// The larger of x and 0; NaN stays NaN because it is the second operand.
///
/// # Safety
/// The contract of Lanes.
#[inline(always)]
unsafe fn relu<S: Lanes>(x: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe { S::max(S::splat(0.0), x) }
}
