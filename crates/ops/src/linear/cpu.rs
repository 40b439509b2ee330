//! The products over panels and blocks, with bias, activation and residual in the epilogue.
#![allow(unsafe_code, reason = "tasks write disjoint tiles of one output; SIMD lanes")]

use super::LinearOp;
use super::cut::{Cut, Path};
use super::weight::{Data, Part, Weight};
use crate::cpu::bytes::{self, Bytes, Codes};
use crate::cpu::elem::{Elem, get, put, with_elem};
use crate::cpu::gemm::{PANEL, Panels, Room, Sink, as_f32, multiply};
use crate::cpu::rows::{Output, Reading, Rows};
use crate::cpu::{Isa, Kernel, Lanes, math, team};
use crate::quant::{self, Activations, Packed, Quant, Split};
use crate::spare::Fresh;
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
pub(crate) fn product<T: Elem>(isa: Isa, x: Rows<'_, T>, weight: &Weight, then: Then<'_, T>) -> Result<Fresh<T>> {
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
                let path = if isa == Isa::Amx { Path::Tiles } else { Path::Lanes };
                let cut = Cut::of(path, codes.rows(), part.n, x.cols);
                Run { tasks: cut.tasks(), how: How::Bytes(&codes, bytes, cut), first, n: part.n }
            }
            (Data::Panels(t), Some(panels)) => {
                let cut = Cut::of(Path::of(isa, t.dtype(), &x), x.rows, part.n, x.cols * t.dtype().size());
                Run { tasks: cut.tasks(), how: How::Panels(panels, t.dtype(), cut), first, n: part.n }
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
            How::Panels(panels, dtype, cut) => in_panels(cut, isa, x, (panels, *dtype), run.n, task, epilogue),
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

/// A task of floats.
fn in_panels<T: Elem>(
    cut: &Cut,
    isa: Isa,
    x: Rows<'_, T>,
    (panels, dtype): (&Reading<'_>, DType),
    n: usize,
    task: usize,
    epilogue: Epilogue<'_, T>,
) -> Result<()> {
    let (rows, columns) = cut.task(task);
    ROOM.with_borrow_mut(|room| {
        (room.isa, room.in_thirds) = (isa, cut.path == Path::Thirds);
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
    /// `ROWS` rows by two vectors from column `i` of a panel on, of which `lanes` are there in each: enough at once to keep the
    /// units busy while each vector waits for its own last step. `WHOLE`: all lanes are there, and the compiler knows it.
    ///
    /// # Safety
    /// The contract of Lanes; the columns lie in y, and belong to this task.
    #[inline(always)]
    unsafe fn finish<S: Lanes, const ROWS: usize, const ALL: usize, const WHOLE: bool, const PLAIN: bool>(
        &self,
        (row, column): (usize, usize),
        sums: &[[f32; PANEL]],
        (i, lanes): (usize, [usize; 2]),
    ) {
        const { assert!(ALL == 2 * ROWS) };
        let lanes = if WHOLE { [S::WIDTH; 2] } else { lanes };
        let first = row * self.n + column + i;
        // Of y and of the residual, for vector j. A macro, since a closure would not have the lanes' instructions.
        macro_rules! part {
            ($j:expr) => {
                first + $j / 2 * self.n + $j % 2 * lanes[0]
            };
        }
        // SAFETY: the caller's.
        unsafe {
            let mut v = [S::splat(0.0); ALL];
            for j in 0..ALL {
                v[j] = get::<S, f32>(&sums[j / 2], i + j % 2 * S::WIDTH, S::WIDTH, 0.0);
            }
            if let Some(bias) = self.then.bias {
                let bias = &bias[column + i..];
                let bias = [get::<S, T>(bias, 0, lanes[0], 0.0), get::<S, T>(bias, lanes[0], lanes[1], 0.0)];
                for j in 0..ALL {
                    v[j] = S::add(v[j], bias[j % 2]);
                }
            }
            if !PLAIN {
                v = math::activate::<S, ALL>(self.then.activation, T::TYPE, v);
            }
            if let Some(residual) = self.then.residual {
                for j in 0..ALL {
                    v[j] = S::add(v[j], get::<S, T>(residual, part!(j), lanes[j % 2], 0.0));
                }
            }
            for j in (0..ALL).step_by(2) {
                let out = self.out.part(part!(j), lanes[0] + lanes[1]);
                if WHOLE {
                    T::store_two::<S>(out.as_mut_ptr(), [v[j], v[j + 1]]);
                } else {
                    put::<S, T>(out, 0, lanes[0], v[j]);
                    put::<S, T>(out, lanes[0], lanes[1], v[j + 1]);
                }
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
        // What is short is compiled into the steps that it goes between, and what is long once.
        let epilogue = *self;
        match self.then.activation {
            Activation::None => Finish::<T, true> { epilogue, row, column, rows }.run::<S>(),
            _ => S::apart(Finish::<T, false> { epilogue, row, column, rows }),
        }
    }
}

/// Rows of a tile through the epilogue; `PLAIN`: without an activation.
struct Finish<'a, T, const PLAIN: bool> {
    epilogue: Epilogue<'a, T>,
    row: usize,
    column: usize,
    rows: &'a [[f32; PANEL]],
}

impl<T: Elem, const PLAIN: bool> Kernel for Finish<'_, T, PLAIN> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Finish { epilogue, row, column, rows } = self;
        let columns = PANEL.min(epilogue.width - column);
        let column = epilogue.first + column;
        let mut r = 0;
        // SAFETY: row < m and column + columns ≤ n; a block of rows and a run of panels belong to one task. The contract of
        // Lanes is kept by Isa::run.
        unsafe {
            // As many at once as there are registers for.
            while S::WIDTH == 16 && columns == PANEL && r + 4 <= rows.len() {
                epilogue.finish::<S, 4, 8, true, PLAIN>((row + r, column), &rows[r..r + 4], (0, [0; 2]));
                r += 4;
            }
            while columns == PANEL && r + 2 <= rows.len() {
                for i in (0..PANEL).step_by(2 * S::WIDTH) {
                    epilogue.finish::<S, 2, 4, true, PLAIN>((row + r, column), &rows[r..r + 2], (i, [0; 2]));
                }
                r += 2;
            }
            for (r, sums) in rows.iter().enumerate().skip(r) {
                for i in (0..columns).step_by(2 * S::WIDTH) {
                    let lanes = [i, i + S::WIDTH].map(|i| columns.saturating_sub(i).min(S::WIDTH));
                    epilogue.finish::<S, 1, 2, false, PLAIN>((row + r, column), std::slice::from_ref(sums), (i, lanes));
                }
            }
        }
    }
}
