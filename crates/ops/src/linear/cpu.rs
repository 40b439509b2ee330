//! The products over panels and blocks, with bias, activation and residual in the epilogue.
#![allow(unsafe_code, reason = "tasks write disjoint tiles of one output; SIMD lanes; f32 seen as itself")]

use super::LinearOp;
use super::weight::{Data, Part, Weight};
use crate::cpu::bytes::{self, Bytes, Codes};
use crate::cpu::elem::{Elem, get, put, vectors, with_elem};
use crate::cpu::gemm::{BLOCK, PANEL, Panels, Room, Sink, multiply};
use crate::cpu::rows::{Output, Reading, Rows};
use crate::cpu::{Isa, Kernel, Lanes, math, team};
use crate::quant::{self, Activations, Packed, Quant, Split};
use crate::tensor::{host, room};
use crate::{Activation, DType, Error, Result};
use half::{bf16, f16};
use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;

thread_local! {
    /// Kept from call to call by each worker.
    static ROOM: RefCell<Room> = RefCell::default();
    /// Kept from call to call by who calls.
    static CODES: RefCell<Codes> = RefCell::default();
}

pub(super) fn run(op: &LinearOp, isa: Isa) -> Result<candle_core::Tensor> {
    let weight = op.weight.clone().in_panels()?;
    with_elem!("linear", op.x.dtype(), T => {
        let x = Reading::of(&op.x)?;
        let bias = op.bias.as_ref().map(Reading::of).transpose()?;
        let bias = bias.as_ref().map(|b| b.slice::<T>()).transpose()?;
        let residual = op.residual.as_ref().map(Reading::of).transpose()?;
        let residual = residual.as_ref().map(|r| r.slice::<T>()).transpose()?;
        let y = product(isa, x.rows::<T>()?, &weight, Then { bias, activation: op.activation, residual })?;
        let mut dims = op.x.dims().to_vec();
        dims.pop();
        dims.push(weight.n);
        host(y, &dims)
    })
}

/// What follows a sum of products.
#[derive(Clone, Copy)]
pub(crate) struct Then<'a, T> {
    pub(crate) bias: Option<&'a [T]>,
    pub(crate) activation: Activation,
    /// As many elements as the result.
    pub(crate) residual: Option<&'a [T]>,
}

/// x · Wᵀ and what follows, `[rows, n]`. The tasks of all parts go to the threads at once.
pub(crate) fn product<T: Elem>(isa: Isa, x: Rows<'_, T>, weight: &Weight, then: Then<'_, T>) -> Result<Vec<T>> {
    let mut y = room::<T>(x.rows * weight.n);
    let out = Output::over(&mut y);
    let mut quantised: Vec<(Quant, Activations)> = Vec::new();
    for part in &*weight.parts {
        if let Data::Blocks(quant, ..) = part.data
            && !quantised.iter().any(|(q, _)| *q == quant)
        {
            quantised.push((quant, Activations::new(isa, quant, x.rows, x.cols, &|i| wide(x.row(i)))));
        }
    }
    // Taken, and not borrowed: a call from within a task has its own.
    let mut codes = CODES.take();
    if weight.parts.iter().any(|part| matches!(part.data, Data::Bytes(..))) {
        codes.fill(isa, (x.rows, x.cols), &|i| wide(x.row(i)));
    }
    let readings = weight.parts.iter().map(Part::reading).collect::<Result<Vec<_>>>()?;
    let mut runs = Vec::new();
    let (mut tasks, mut first) = (0, 0);
    for (part, reading) in weight.parts.iter().zip(&readings) {
        let run = match (&part.data, reading) {
            (Data::Blocks(quant, Some(packed), _), _) => {
                let found = quantised.iter().find(|(q, _)| q == quant);
                let (_, x) = found.ok_or_else(|| Error::call("linear", "no activations for the blocks"))?;
                Run { tasks: Split::of(x, packed).tasks(), how: How::Blocks(x, packed), first, n: part.n }
            }
            (Data::Bytes(Some(bytes), _), _) => {
                let cut = Cut::of(codes.rows(), part.n, isa == Isa::Amx);
                Run { tasks: cut.blocks * cut.columns, how: How::Bytes(&codes, bytes, cut), first, n: part.n }
            }
            (Data::Panels(t), Some(panels)) => {
                let cut = Cut::of(x.rows, part.n, isa == Isa::Amx && t.dtype() == T::TYPE);
                Run { tasks: cut.blocks * cut.columns, how: How::Panels(panels, t.dtype(), cut), first, n: part.n }
            }
            _ => return Err(Error::Phantom),
        };
        tasks += run.tasks;
        first += part.n;
        runs.push(run);
    }
    team::try_each(tasks, |mut task| {
        let Some(run) = runs.iter().find(|run| {
            let own = task < run.tasks;
            task -= if own { 0 } else { run.tasks };
            own
        }) else {
            return Ok(());
        };
        let epilogue = Epilogue { then, first: run.first, width: run.n, n: weight.n, out: &out };
        match &run.how {
            How::Blocks(x, packed) => {
                let (tile, columns) = Split::of(x, packed).task(task);
                isa.run(BlockTask { isa, x, packed, tile, columns, epilogue });
                Ok(())
            }
            How::Bytes(x, w, cut) => {
                let (rows, panels) = cut.task(task);
                ROOM.with_borrow_mut(|room| {
                    isa.run_ints(bytes::Task { isa, x, w, rows, panels, sums: &mut room.sums, sink: epilogue });
                });
                Ok(())
            }
            How::Panels(panels, dtype, cut) => cut.run(isa, x, (panels, *dtype), run.n, task, epilogue),
        }
    })?;
    CODES.set(codes);
    Ok(y)
}

impl Part {
    fn reading(&self) -> Result<Option<Reading<'_>>> {
        match &self.data {
            Data::Panels(t) | Data::Rows(t) => Reading::of(t).map(Some),
            Data::Blocks(..) | Data::Bytes(..) => Ok(None),
        }
    }
}

/// A row in f32, itself where it is.
fn wide<T: Elem>(row: &[T]) -> Cow<'_, [f32]> {
    match as_f32(row) {
        Some(row) => Cow::Borrowed(row),
        None => row.iter().map(|v| v.wide()).collect(),
    }
}

/// The slice as what it is, if that is f32.
fn as_f32<T: Elem>(values: &[T]) -> Option<&[f32]> {
    // SAFETY: only f32 has this type's name.
    (T::TYPE == DType::F32).then(|| unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len()) })
}

/// The tasks of one part.
struct Run<'a> {
    tasks: usize,
    how: How<'a>,
    /// Its first column of y, and how many.
    first: usize,
    n: usize,
}

enum How<'a> {
    Blocks(&'a Activations, &'a Packed),
    Bytes(&'a Codes, &'a Bytes, Cut),
    Panels(&'a Reading<'a>, DType, Cut),
}

// A row's two parts in bytes are in one task: see `Codes::rows`.
const _: () = assert!(TILES.is_multiple_of(2) && BLOCK.is_multiple_of(2));

/// Rows of a task in tiles: they stay in the second-level cache while the panels pass by.
const TILES: usize = 192;

/// The output in tasks of so many rows, and of fewer columns when rows alone would leave threads idle.
struct Cut {
    block: usize,
    blocks: usize,
    columns: usize,
    per_task: usize,
}

impl Cut {
    fn of(rows: usize, n: usize, in_tiles: bool) -> Cut {
        let panels = n.div_ceil(PANEL);
        let block = if in_tiles { TILES } else { BLOCK };
        let blocks = rows.div_ceil(block).max(1);
        let wanted = 3 * rayon::current_num_threads();
        let columns = wanted.div_ceil(blocks).clamp(1, panels.max(1));
        Cut { block, blocks, columns, per_task: panels.div_ceil(columns).max(1) }
    }

    /// The rows and the panels of a task; both may reach beyond what is there.
    fn task(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let (block, column) = (task / self.columns, task % self.columns);
        let rows = block * self.block..(block + 1) * self.block;
        (rows, column * self.per_task..(column + 1) * self.per_task)
    }

    fn run<T: Elem>(
        &self,
        isa: Isa,
        x: Rows<'_, T>,
        (panels, dtype): (&Reading<'_>, DType),
        n: usize,
        task: usize,
        epilogue: Epilogue<'_, T>,
    ) -> Result<()> {
        let (rows, columns) = self.task(task);
        ROOM.with_borrow_mut(|room| {
            room.isa = isa;
            if dtype == T::TYPE {
                let b = Panels::of(panels.slice::<T>()?, x.cols, n);
                isa.run(Task { x, b, rows, panels: columns, room, epilogue });
                return Ok(());
            }
            // Floats of another dtype go with activations in f32 alone: see `Source::kept`.
            let Some(data) = as_f32(x.data) else {
                return Err(Error::call("linear", format!("x in {} against a weight in {dtype}", T::TYPE)));
            };
            let x = Rows { data, rows: x.rows, cols: x.cols, stride: x.stride };
            match dtype {
                DType::BF16 => {
                    let b = Panels::of(panels.slice::<bf16>()?, x.cols, n);
                    isa.run(Task { x, b, rows, panels: columns, room, epilogue });
                }
                _ => {
                    let b = Panels::of(panels.slice::<f16>()?, x.cols, n);
                    isa.run(Task { x, b, rows, panels: columns, room, epilogue });
                }
            }
            Ok(())
        })
    }
}

struct Task<'a, A, B, T> {
    x: Rows<'a, A>,
    b: Panels<'a, B>,
    rows: Range<usize>,
    panels: Range<usize>,
    room: &'a mut Room,
    epilogue: Epilogue<'a, T>,
}

impl<A: Elem, B: Elem, T: Elem> Kernel for Task<'_, A, B, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Task { x, b, rows, panels, room, mut epilogue } = self;
        multiply::<S, A, B>(x, b, rows, panels, room, &mut epilogue);
    }
}

struct BlockTask<'a, T> {
    isa: Isa,
    x: &'a Activations,
    packed: &'a Packed,
    tile: usize,
    columns: Range<usize>,
    epilogue: Epilogue<'a, T>,
}

impl<T: Elem> Kernel for BlockTask<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let BlockTask { isa, x, packed, tile, columns, mut epilogue } = self;
        quant::multiply::<S>(isa, x, packed, tile, columns, &mut epilogue);
    }
}

/// Bias, activation, residual and the one rounding.
#[derive(Clone, Copy)]
struct Epilogue<'a, T> {
    then: Then<'a, T>,
    /// The part's first column, and how many it has.
    first: usize,
    width: usize,
    n: usize,
    out: &'a Output<T>,
}

impl<T: Elem> Epilogue<'_, T> {
    /// The columns from `i` on of a row of y, `lanes` of them.
    ///
    /// # Safety
    /// The contract of Lanes.
    #[inline(always)]
    unsafe fn finish<S: Lanes>(
        &self,
        at: (usize, usize),
        sums: &[f32; PANEL],
        y: &mut [T],
        (i, lanes): (usize, usize),
    ) {
        let (row, column) = at;
        // SAFETY: the caller's.
        unsafe {
            let mut v = get::<S, f32>(sums, i, lanes, 0.0);
            if let Some(bias) = self.then.bias {
                v = S::add(v, get::<S, T>(bias, column + i, lanes, 0.0));
            }
            v = math::activate::<S>(self.then.activation, v);
            if let Some(residual) = self.then.residual {
                v = S::add(v, get::<S, T>(residual, row * self.n + column + i, lanes, 0.0));
            }
            put::<S, T>(y, i, lanes, v);
        }
    }
}

impl<T: Elem> Sink for Epilogue<'_, T> {
    #[inline(always)]
    fn take<S: Lanes>(&mut self, row: usize, column: usize, sums: &[f32; PANEL]) {
        let columns = PANEL.min(self.width - column);
        let at = (row, self.first + column);
        // SAFETY: row < m and column + columns ≤ n; a block of rows and a run of panels belong to one task. The contract of
        // Lanes is kept by Isa::run.
        unsafe {
            let y = self.out.part(row * self.n + at.1, columns);
            if columns == PANEL {
                // Whole vectors, and the compiler knows it: without this it makes room for parts of them everywhere.
                for i in (0..PANEL).step_by(S::WIDTH) {
                    self.finish::<S>(at, sums, y, (i, S::WIDTH));
                }
            } else {
                vectors!(S, columns, |i, lanes| { self.finish::<S>(at, sums, y, (i, lanes)) });
            }
        }
    }
}
