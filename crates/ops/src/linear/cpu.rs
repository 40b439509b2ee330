//! Matrix products (GEMM; GEMV for one row) with packed panels and blocks on the CPU; the epilogue
//! adds bias, activation and residual.

use super::LinearOp;
use super::epilogue::{Epilogue, EpilogueParams};
use super::tiling::{Path, Tiling};
use super::weight::{Data, Part, Weight};
use crate::buffer_pool::PooledBuffer;
use crate::cpu::bytes::{self, Bytes, Codes};
use crate::cpu::elem::{Elem, with_elem};
use crate::cpu::gemm::{GemmScratch, Panels, as_f32, multiply};
use crate::cpu::rows::{Output, Reading, Rows};
use crate::cpu::{Isa, Kernel, Lanes, team};
use crate::quant::{self, Activations, Packed, Quant, Split};
use crate::tensor::{host, room};
use crate::{DType, Error, Result};
use half::{bf16, f16};
use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;

thread_local! {
    /// Scratch buffers that each worker reuses from call to call.
    static SCRATCH: RefCell<GemmScratch> = RefCell::default();
    /// int8 activations, whose buffers the calling thread reuses from call to call.
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
        let y = product(isa, x.rows::<T>()?, &weight, EpilogueParams { bias, activation: op.activation, residual })?;
        let mut dims = op.x.dims().to_vec();
        dims.pop();
        dims.push(weight.n);
        host(y, &dims)
    })
}

/// x · Wᵀ with its epilogue, `[rows, n]`. The team runs the tasks of all parts at once.
pub(crate) fn product<T: Elem>(
    isa: Isa,
    x: Rows<'_, T>,
    weight: &Weight,
    params: EpilogueParams<'_, T>,
) -> Result<PooledBuffer<T>> {
    let mut y = room::<T>(x.rows * weight.n);
    params.check(x.rows, weight.n)?;
    let out = Output::over(&mut y);
    let mut quantized: Vec<(Quant, Activations)> = Vec::new();
    for part in &*weight.parts {
        if let Data::Blocks(quant, ..) = part.data
            && !quantized.iter().any(|(q, _)| *q == quant)
        {
            quantized.push((quant, Activations::new(isa, quant, x.rows, x.cols, &|i| to_f32(x.row(i)))));
        }
    }
    // Taken and not borrowed: a nested call from within a task needs its own.
    let mut codes = CODES.take();
    if weight.parts.iter().any(|part| matches!(part.data, Data::Bytes(..))) {
        codes.fill(isa, (x.rows, x.cols), &|i| to_f32(x.row(i)));
    }
    let readings = weight.parts.iter().map(Part::reading).collect::<Result<Vec<_>>>()?;
    let mut runs = Vec::new();
    let (mut tasks, mut first) = (0, 0);
    for (part, reading) in weight.parts.iter().zip(&readings) {
        let run = match (&part.data, reading) {
            (Data::Blocks(quant, Some(packed), _), _) => {
                let found = quantized.iter().find(|(q, _)| q == quant);
                let (_, x) = found
                    .ok_or_else(|| Error::call("linear", "the activations are not quantized for this block format"))?;
                PartTasks {
                    tasks: Split::of(x, packed).tasks(),
                    operands: Operands::Blocks(x, packed),
                    first,
                    n: part.n,
                }
            }
            (Data::Bytes(Some(bytes), _), _) => {
                let path = if isa == Isa::Amx { Path::Tiles } else { Path::Lanes };
                let tiling = Tiling::of(path, codes.rows(), part.n, x.cols);
                PartTasks { tasks: tiling.tasks(), operands: Operands::Bytes(&codes, bytes, tiling), first, n: part.n }
            }
            (Data::Panels(t), Some(panels)) => {
                let tiling = Tiling::of(Path::of(isa, T::TYPE, t.dtype()), x.rows, part.n, x.cols * t.dtype().size());
                PartTasks {
                    tasks: tiling.tasks(),
                    operands: Operands::Panels(panels, t.dtype(), tiling),
                    first,
                    n: part.n,
                }
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
        let epilogue = Epilogue::of(params, (run.first, run.n), weight.n, &out);
        match &run.operands {
            Operands::Blocks(x, packed) => {
                let (tile, columns) = Split::of(x, packed).task(task);
                isa.run(BlockTask { isa, x, packed, tile, columns, epilogue });
                Ok(())
            }
            Operands::Bytes(x, w, tiling) => {
                let (rows, panels) = tiling.task(task);
                SCRATCH.with_borrow_mut(|scratch| {
                    isa.run_ints(bytes::Task { isa, x, w, rows, panels, sums: &mut scratch.sums, sink: epilogue });
                });
                Ok(())
            }
            Operands::Panels(panels, dtype, tiling) => {
                in_panels(tiling, isa, x, (panels, *dtype), run.n, task, epilogue)
            }
        }
    })?;
    CODES.set(codes);
    Ok(y)
}

impl Part {
    fn reading(&self) -> Result<Option<Reading<'_>>> {
        match &self.data {
            Data::Panels(t) | Data::Rows(t) => Reading::of(t).map(Some),
            Data::Blocks(..) | Data::Bytes(..) | Data::Raw(..) => Ok(None),
        }
    }
}

/// A row in f32, borrowed if it is f32 already.
fn to_f32<T: Elem>(row: &[T]) -> Cow<'_, [f32]> {
    match as_f32(row) {
        Some(row) => Cow::Borrowed(row),
        None => row.iter().map(|v| v.wide()).collect(),
    }
}

/// The tasks of one part of the weight.
struct PartTasks<'a> {
    tasks: usize,
    operands: Operands<'a>,
    /// The part's first column of y, and its number of columns.
    first: usize,
    n: usize,
}

enum Operands<'a> {
    Blocks(&'a Activations, &'a Packed),
    Bytes(&'a Codes, &'a Bytes, Tiling),
    Panels(&'a Reading<'a>, DType, Tiling),
}

/// Runs a task with float panels.
fn in_panels<T: Elem>(
    tiling: &Tiling,
    isa: Isa,
    x: Rows<'_, T>,
    (panels, dtype): (&Reading<'_>, DType),
    n: usize,
    task: usize,
    epilogue: Epilogue<'_, T>,
) -> Result<()> {
    let (rows, columns) = tiling.task(task);
    SCRATCH.with_borrow_mut(|scratch| {
        (scratch.isa, scratch.bf16x3) = (isa, tiling.path == Path::Bf16x3);
        if dtype == T::TYPE {
            let b = Panels::of(panels.slice::<T>()?, x.cols, n);
            isa.run(Task { x, b, rows, panels: columns, scratch, epilogue });
            return Ok(());
        }
        // Only f32 activations take float weights of another dtype: see `Source::part_format`.
        let Some(data) = as_f32(x.data) else {
            return Err(Error::call("linear", format!("x in {} does not fit a weight in {dtype}", T::TYPE)));
        };
        let x = Rows { data, rows: x.rows, cols: x.cols, stride: x.stride };
        match dtype {
            DType::BF16 => {
                let b = Panels::of(panels.slice::<bf16>()?, x.cols, n);
                isa.run(Task { x, b, rows, panels: columns, scratch, epilogue });
            }
            _ => {
                let b = Panels::of(panels.slice::<f16>()?, x.cols, n);
                isa.run(Task { x, b, rows, panels: columns, scratch, epilogue });
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
    scratch: &'a mut GemmScratch,
    epilogue: Epilogue<'a, T>,
}

impl<A: Elem, B: Elem, T: Elem> Kernel for Task<'_, A, B, T> {
    type Output = ();
    const BF16: bool = A::IS_BF16 || T::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Task { x, b, rows, panels, scratch, mut epilogue } = self;
        multiply::<S, A, B>(x, b, rows, panels, scratch, &mut epilogue);
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
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let BlockTask { isa, x, packed, tile, columns, mut epilogue } = self;
        quant::multiply::<S>(isa, x, packed, tile, columns, &mut epilogue);
    }
}
