//! Launches `kernel.metal`: a thread for four neighbours of a token. It looks up rows of the word table of a product too.

use super::MOST_TABLES;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;
use crate::{Error, Result, Tensor};

const SOURCE: &str = kernels!();

/// The rows of all tables added, those of the first times `scale`.
pub(super) fn run(pairs: &[(&Tensor, &Tensor)], scale: f32) -> Result<candle_core::Tensor> {
    let open = |(table, ids): &(&Tensor, &Tensor)| Ok((View::of(table)?, View::whole(ids)?));
    let open = pairs.iter().map(open).collect::<Result<Vec<_>>>()?;
    let [(words, ids), ..] = &*open else { return Err(Error::call("embed", "no tables")) };
    let (n, t) = (words.rows()?.cols, ids.elements());
    // As `Tables` in the kernel.
    let mut told = params![n, scale].to_vec();
    for (table, _) in &open {
        let rows = table.rows()?;
        if rows.rows == 0 {
            return Err(Error::call("embed", "a table without rows"));
        }
        told.extend(params![rows.rows, rows.stride]);
    }
    told.resize(2 + 2 * MOST_TABLES, 0);
    let kernel = Kernel::new(SOURCE, format!("embed_{}", words.dtype())).number(open.len() as u16);
    let y = Call::room(words, t * n, words.dtype())?;
    let mut call = Call::new(words, &kernel)?;
    for i in 0..MOST_TABLES {
        let (table, ids) = open.get(i).unwrap_or(&open[0]);
        call = call.input(table).input(ids);
    }
    call.result(&y).numbers(&told).run(Grid::over(n.div_ceil(4), t))?;
    y.tensor(&[t, n])
}
