//! Launches `kernel.cu`: a thread for 16 bytes of a token. It looks up rows of the word table of a product too.

use super::MOST_TABLES;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::strided::Rows;
use crate::{Error, Result, Tensor};

const BINARY: Binary = binary!("embed");

/// The rows of all tables added, those of the first times `scale`.
pub(super) fn run(pairs: &[(&Tensor, &Tensor)], scale: f32) -> Result<candle_core::Tensor> {
    let open = |(table, ids): &(&Tensor, &Tensor)| {
        let (table, ids) = (View::of(table)?, View::whole(ids)?);
        let rows = table.rows()?;
        if rows.rows == 0 {
            return Err(Error::call("embed", "a table without rows"));
        }
        Ok((table, ids, rows))
    };
    let open = pairs.iter().map(open).collect::<Result<Vec<_>>>()?;
    let [(words, ids, Rows { cols: n, .. }), ..] = &*open else { return Err(Error::call("embed", "no tables")) };
    let (n, t, dtype) = (*n, ids.elements(), words.dtype());
    let run = 16 / dtype.size();
    let in_runs =
        open.iter().all(|(table, _, rows)| [table.start, rows.stride, n].iter().all(|i| i.is_multiple_of(run)));
    let (kind, run) = if in_runs { ("runs", run) } else { ("odd", 1) };
    let y = Call::room(words, t * n, dtype)?;
    let mut call = Call::new(words, &Kernel::new(BINARY, format!("embed_{kind}_{dtype}")))?;
    for i in 0..MOST_TABLES {
        call = match open.get(i) {
            Some((table, ids, rows)) => call.input(table).input(ids).u32(rows.rows).u32(rows.stride),
            None => call.maybe(None).maybe(None).u32(0).u32(0),
        };
    }
    call.made(&y).u32(n).f32(scale).run(Grid::along(t, n.div_ceil(run)))?;
    y.tensor(&[t, n])
}
