//! Cases: experts with many rows, one row and none; one expert per token, and all; gated, with
//! renormalized probabilities, and with a residual; and with quantized weights.

use super::reference::{self, Problem};
use super::{ExpertParts, ExpertShape, Experts};
use crate::case::{Case, InBlocks, Input, Tolerance, weights};
use crate::{Activation, DType, Linear, Place, Quant, Result, WeightFormat};

pub(crate) fn cases() -> Vec<Case> {
    // tokens, width, inner width, experts, experts per token, gated
    let floats = [
        (40, 96, 200, 8, 2, false),
        (3, 33, 17, 8, 1, false),
        (1, 20, 40, 4, 4, false),
        (30, 64, 48, 6, 3, true),
        (1, 33, 17, 8, 2, true),
        // More experts than one dispatch takes, with about one pair each, and with more.
        (5, 36, 44, 21, 4, false),
        (11, 33, 29, 20, 3, true),
        // Several tiles per expert.
        (300, 12, 70, 5, 1, false),
        (200, 8, 36, 6, 2, true),
        // The limits of our GPU kernels.
        (2, 4, 4, 512, 32, false),
    ];
    // Quantized up, down or both matrices, so that outputs need not be whole blocks.
    let blocks = [
        ((1, 64, 32, 8, 2, true), [Some(Quant::Q8_0), Some(Quant::Q4_0)]),
        ((3, 256, 17, 8, 1, true), [Some(Quant::Q4K), None]),
        ((5, 33, 64, 21, 4, false), [None, Some(Quant::Q5_1)]),
        ((1, 256, 35, 20, 4, false), [Some(Quant::Iq3S), None]),
        ((40, 96, 64, 8, 2, false), [Some(Quant::Q4_0), Some(Quant::Q8_0)]),
        ((11, 64, 37, 20, 3, true), [Some(Quant::Q4_1), None]),
        ((150, 33, 32, 3, 1, false), [None, Some(Quant::Q5_0)]),
        // Its weights are in the hundreds: a gate would square them beyond the range of f16.
        ((10, 256, 256, 3, 2, false), [Some(Quant::Iq2Xxs), Some(Quant::Q6K)]),
    ];
    let all = floats.into_iter().map(|shape| (shape, [None; 2])).chain(blocks).enumerate();
    let all: Vec<_> = all.collect();
    let case = |dtype| all.iter().map(move |(i, (shape, quants))| one(*i as u64, dtype, *shape, *quants));
    DType::FLOATS.into_iter().flat_map(case).collect()
}

/// Every block format in either product, of few pairs and of many; and floats in the sizes for
/// which CUDA has other kernels.
pub(crate) fn cases_of_cuda() -> Vec<Case> {
    let floats = [
        // Rows of whole runs: few pairs, more experts than most models have, many tokens, and many
        // pairs per expert; and rows that are not whole runs.
        (3, 64, 48, 8, 1, false),
        (2, 64, 32, 200, 4, false),
        (300, 64, 72, 3, 1, true),
        (2, 33, 17, 200, 2, false),
        (300, 33, 17, 5, 1, false),
    ];
    let of_floats = |dtype| (100..).zip(floats).map(move |(seed, shape)| one(seed, dtype, shape, [None; 2]));
    let (few, many) = ((1, 256, 256, 8, 2, false), (20, 256, 256, 3, 2, false));
    let of_blocks = |(seed, quant): (u64, Quant)| {
        let [up, down] = [[Some(quant), None], [None, Some(quant)]];
        let tile = |dtype| one(seed, dtype, many, up);
        [one(seed, DType::F32, few, up), one(seed, DType::F32, few, down), tile(DType::F16), tile(DType::BF16)]
    };
    DType::FLOATS.into_iter().flat_map(of_floats).chain((200..).zip(Quant::all()).flat_map(of_blocks)).collect()
}

type Shape = (usize, usize, usize, usize, usize, bool);

/// The matrices of one product.
#[derive(Clone)]
struct Matrices {
    /// The (dequantized) values, stacked.
    values: Input,
    /// Quantized matrices, `[outputs, inputs]` each; empty for floats.
    blocks: Vec<InBlocks>,
    shape: ExpertShape,
}

impl Matrices {
    /// From these values, rounded to `quant` if given.
    fn new(seed: u64, values: Input, shape: ExpertShape, quant: Option<Quant>) -> Matrices {
        let ExpertShape { rows, columns, transposed, experts } = shape;
        let Some(quant) = quant else { return Matrices { values, blocks: Vec::new(), shape } };
        let transpose = move |v: &[f32], columns: usize| match transposed {
            true => (0..v.len()).map(|i| v[i % (v.len() / columns) * columns + i / (v.len() / columns)]).collect(),
            false => v.to_vec(),
        };
        let block = |e: usize| {
            let (all, size) = (values.values.clone(), rows * columns);
            let dims = if transposed { [columns, rows] } else { [rows, columns] };
            InBlocks::of(seed, quant, dims, move || transpose(&all[e * size..][..size], columns))
        };
        let blocks: Vec<_> = (0..experts).map(block).collect();
        let reference_blocks = blocks.clone();
        let values = Input::new(&values.dims, values.dtype, move || {
            reference_blocks.iter().flat_map(|block| transpose(block.values(), rows)).collect()
        });
        Matrices { values, blocks, shape }
    }

    fn on(&self, place: &Place) -> Result<Vec<Linear>> {
        let floats = weights(&[("all", &self.values)], place);
        // CPU products with quantized weights round activations to 8 bits, also between the two
        // products: there the weights have to be floats.
        let format = if place.device().is_gpu() { WeightFormat::File } else { WeightFormat::Activations };
        let one = |e: usize| match self.blocks.get(e) {
            Some(b) => {
                Linear::load(&b.weights(self.values.dtype, place).with_format(format), b.dims[1], b.dims[0], false)
            }
            None => Experts::part(&floats, "all", e, self.shape),
        };
        (0..self.shape.experts).map(one).collect()
    }
}

fn one(seed: u64, dtype: DType, (tokens, n, inner, experts, top, gated): Shape, quants: [Option<Quant>; 2]) -> Case {
    let normal = |i: u64, dims: &[usize], spread: f32| Input::normal(seed * 5 + i + 1100, dims, dtype, (0.0, spread));
    // One case has gaps between the rows of x.
    let gap = if n == 96 { 3 } else { 0 };
    let x = normal(0, &[tokens, n + gap], 1.0);
    // Gates first, then the up projection.
    let rows = if gated { 2 * inner } else { inner };
    let shape = |rows, transposed| ExpertShape { experts, rows, columns: n, transposed };
    let up = normal(1, &[experts * rows, n], 1.0 / (n as f32).sqrt());
    let down = normal(2, &[experts * inner, n], 1.0 / (inner as f32).sqrt());
    let up = Matrices::new(seed, up, shape(rows, false), quants[0]);
    let down = Matrices::new(seed, down, shape(inner, true), quants[1]);
    let bias = normal(3, &[n], 0.3);
    let router = Input::normal(seed * 5 + 1104, &[experts, n], DType::F32, (0.0, 1.5 / (n as f32).sqrt()));
    let reference_inputs = (x.clone(), router.clone(), up.values.clone(), down.values.clone(), bias.clone());
    let flag = |is_so: bool, what: &'static str| if is_so { what } else { "" };
    let name = |quant: &Quant| format!(" in {quant}");
    let formats: String = quants.iter().flatten().map(name).collect();
    // Rounded between the two products and after the second, each error spread over a sum, and once
    // at the end. Composed also rounds around the activation. Quantized weights are rounded too,
    // where a kernel converts them to the activations' 16-bit format: a third of a rounding of each
    // product.
    let fused = if formats.is_empty() || dtype == DType::F32 { 3.0 } else { 4.0 };
    Case {
        op: "experts",
        name: format!(
            "{tokens}x{n}, {top} of {experts} with {inner}{}{}{formats}",
            flag(gated, ", gated"),
            flag(gap > 0, ", gaps")
        ),
        dtype,
        tolerance: Tolerance { fused, composed: 5.0, sums: 16.0 + 2.0 * (inner as f64).sqrt() },
        flops: 4 * (tokens * top * n * inner) as u64,
        prepare: Box::new(move |place| {
            let bias = Some(bias.on(place)?);
            let (up, down) = (up.on(place)?, down.on(place)?);
            let parts = ExpertParts { up: &up, down: &down, bias };
            let layer = Experts::new(router.on(place)?, parts, Activation::Gelu, top)?;
            let x = x.on(place)?;
            if gated {
                let layer = layer.gated()?.renormalised();
                return Ok(Box::new(move || layer.forward_residual(&x, &x)));
            }
            let x = if gap > 0 { x.narrow(1, gap, n)? } else { x };
            Ok(Box::new(move || layer.forward(&x)))
        }),
        reference: Box::new(move || {
            let (x, router, up, down, bias) = &reference_inputs;
            let x = x.columns(gap, n);
            reference::experts(&Problem {
                x: &x,
                router: &router.values,
                up: &up.values,
                down: &down.values,
                bias: &bias.values,
                experts,
                inner,
                top,
                activation: Activation::Gelu,
                gated,
            })
        }),
    }
}
