//! Launches `kernel.metal`: one thread per four neighbours of a token. It also looks up rows of
//! tied embeddings.

use super::MAX_TABLES;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;
use crate::{Error, Result, Tensor};

const SOURCE: &str = kernels!();

/// Adds the rows of all tables, those of the first multiplied by `scale`.
pub(super) fn run(pairs: &[(&Tensor, &Tensor)], scale: f32) -> Result<candle_core::Tensor> {
    let open = |(table, ids): &(&Tensor, &Tensor)| Ok((View::of(table)?, View::whole(ids)?));
    let open = pairs.iter().map(open).collect::<Result<Vec<_>>>()?;
    let [(words, ids), ..] = &*open else { return Err(Error::call("embed", "no tables")) };
    let (n, t) = (words.rows()?.cols, ids.elements());
    // As `Tables` in the kernel.
    let mut shape = params![n, scale].to_vec();
    for (table, _) in &open {
        let rows = table.rows()?;
        if rows.rows == 0 {
            return Err(Error::call("embed", "an embedding table has no rows"));
        }
        shape.extend(params![rows.rows, rows.stride]);
    }
    shape.resize(2 + 2 * MAX_TABLES, 0);
    let kernel = Kernel::new(SOURCE, format!("embed_{}", words.dtype())).number(open.len() as u16);
    let y = Call::alloc(words, t * n, words.dtype())?;
    let mut call = Call::new(words, &kernel)?;
    for i in 0..MAX_TABLES {
        let (table, ids) = open.get(i).unwrap_or(&open[0]);
        call = call.input(table).input(ids);
    }
    call.result(&y).numbers(&shape).run(Grid::over(n.div_ceil(4), t))?;
    y.tensor(&[t, n])
}
