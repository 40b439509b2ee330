//! Launches `kernel.metal`: a thread for four neighbours of a token. It looks up rows of the word table of a product too.

use super::MOST_TABLES;
use crate::launch::metal::{Call, Grid, Kernel, Told, View, kernels};
use crate::{Error, Result, Tensor};

const SOURCE: &str = kernels!();

/// As in the kernel.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Table {
    rows: u32,
    stride: u32,
}

/// As in the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Tables {
    n: u32,
    scale: f32,
    tables: [Table; MOST_TABLES],
}

// SAFETY: numbers of four bytes.
#[allow(unsafe_code, reason = "a promise about a layout")]
unsafe impl Told for Tables {}

/// The rows of all tables added, those of the first times `scale`.
pub(super) fn run(pairs: &[(&Tensor, &Tensor)], scale: f32) -> Result<candle_core::Tensor> {
    let open = |(table, ids): &(&Tensor, &Tensor)| Ok((View::of(table)?, View::whole(ids)?));
    let open = pairs.iter().map(open).collect::<Result<Vec<_>>>()?;
    let [(words, ids), ..] = &*open else { return Err(Error::call("embed", "no tables")) };
    let (n, t) = (words.rows()?.cols, ids.elements());
    let mut told = Tables { n: n as u32, scale, tables: [Table::default(); MOST_TABLES] };
    for ((table, _), told) in open.iter().zip(&mut told.tables) {
        let rows = table.rows()?;
        if rows.rows == 0 {
            return Err(Error::call("embed", "a table without rows"));
        }
        *told = Table { rows: rows.rows as u32, stride: rows.stride as u32 };
    }
    let kernel = Kernel::new(SOURCE, format!("embed_{}", words.dtype())).number(open.len() as u16);
    let y = Call::room(words, t * n, words.dtype())?;
    let mut call = Call::new(words, &kernel)?;
    for i in 0..MOST_TABLES {
        let (table, ids) = open.get(i).unwrap_or(&open[0]);
        call = call.input(table).input(ids);
    }
    call.result(&y).told(&told).run(Grid::over(n.div_ceil(4), t))?;
    y.tensor(&[t, n])
}
