//! One output row at a time, directly from the tables.
#![allow(unsafe_code, reason = "SIMD lanes")]

use super::EmbedOp;
use crate::cpu::elem::{Elem, get, put, vectors, with_elem};
use crate::cpu::rows::{Reading, fill_rows};
use crate::cpu::{Isa, Kernel, Lanes};
use crate::tensor::host;
use crate::{Error, Result};

pub(super) fn run(op: &EmbedOp, isa: Isa) -> Result<candle_core::Tensor> {
    with_elem!("embed", op.pairs[0].0.dtype(), T => {
        let open = op.pairs.iter().map(|(t, i)| Ok((Reading::of(t)?, Reading::of(i)?))).collect::<Result<Vec<_>>>()?;
        let mut pairs = Vec::new();
        for (table, ids) in &open {
            let (table, ids) = (table.rows::<T>()?, ids.slice::<u32>()?);
            if let Some(id) = ids.iter().find(|id| **id as usize >= table.rows) {
                return Err(Error::call("embed", format!("id {id} is beyond the table of {} rows", table.rows)));
            }
            pairs.push((table, ids));
        }
        let (t, n) = (op.pairs[0].1.dims()[0], pairs[0].0.cols);
        let y = fill_rows::<T>(t, n, 0, |i, out, _| {
            isa.run(Sum { rows: pairs.iter().map(|(table, ids)| table.row(ids[i] as usize)), out });
        });
        host(y, &[t, n])
    })
}

struct Sum<'a, T, I> {
    rows: I,
    out: &'a mut [T],
}

impl<'a, T: Elem, I: Iterator<Item = &'a [T]> + Clone> Kernel for Sum<'a, T, I> {
    type Output = ();
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        vectors!(S, self.out.len(), |i, lanes| {
            // SAFETY: the contract of Lanes, kept by Isa::run.
            unsafe {
                let mut sum = S::splat(0.0);
                for row in self.rows.clone() {
                    sum = S::add(sum, get::<S, T>(row, i, lanes, 0.0));
                }
                put::<S, T>(self.out, i, lanes, sum);
            }
        });
    }
}
