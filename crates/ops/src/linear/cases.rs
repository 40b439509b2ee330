//! Cases: every activation, with and without bias; sizes that are and are not multiples of panel
//! and tile; one row and many; weights in block formats and in int8.

use super::reference::{Problem, linear};
use super::{Linear, large_cases};
use crate::case::{Call, Case, InBlocks, Input, Tolerance, round, weights};
use crate::{Activation, DType, Place, Quant, Result, WeightFormat};

/// m, k, n, the activation, and whether there is a bias.
type Shape = (usize, usize, usize, Activation, bool);

pub(crate) fn cases() -> Vec<Case> {
    let shapes = [
        (1, 384, 384, Activation::None, true),
        (16, 384, 1152, Activation::None, true),
        (37, 384, 1536, Activation::Gelu, true),
        (128, 1536, 384, Activation::None, true),
        (200, 33, 65, Activation::GeluTanh, true),
        (13, 130, 31, Activation::Relu, false),
        (7, 64, 100, Activation::Silu, true),
        (5, 48, 48, Activation::Tanh, false),
        (3, 1, 1, Activation::None, true),
        (30, 96, 40, Activation::None, true),
        (9, 64, 70, Activation::QuickGelu, true),
        (6, 40, 33, Activation::Sigmoid, false),
        // For GPUs: one, two, four and eight rows, sizes that are and are not multiples of four,
        // and partial tiles of each size.
        (1, 130, 6, Activation::Relu, true),
        (2, 72, 37, Activation::None, true),
        (4, 33, 9, Activation::None, true),
        (8, 36, 5, Activation::Gelu, false),
        (70, 40, 950, Activation::None, true),
        (130, 20, 4100, Activation::None, false),
    ];
    let bytes = [
        (1, 384, 384, Activation::None, true),
        (37, 384, 1152, Activation::Gelu, true),
        (128, 1536, 384, Activation::None, true),
        (200, 33, 65, Activation::Relu, false),
        (13, 130, 31, Activation::Tanh, true),
    ];
    let in_bytes = |dtype| bytes.iter().enumerate().map(move |(i, s)| int8_case(i as u64, dtype, *s));
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| float_case(i as u64, dtype, *s));
    let bytes = DType::FLOATS.into_iter().flat_map(in_bytes);
    DType::FLOATS.into_iter().flat_map(case).chain(blocks()).chain(bytes).collect()
}

/// Every block format with one row and with many, and every path through the kernels in every
/// dtype.
fn blocks() -> Vec<Case> {
    let plain = Blocks { k: 512, ..Blocks::default() };
    let mut all = Vec::new();
    for quant in Quant::all() {
        let formats = [(quant, 70)];
        all.extend([1, 37].map(|m| block_case(Blocks { m, formats: &formats, ..plain })));
    }
    // The second matrix starts within a panel of y but at the start of a panel of its own; one of
    // its panels is full, one partial.
    let joined = Blocks { m: 13, formats: &[(Quant::Q4_0, 40), (Quant::Q8_0, 70)], ..plain };
    all.push(block_case(Blocks { epilogue: Some(Activation::None), ..joined }));
    // More units of 32 than a SIMD-group has lanes, and a number of outputs that does not divide
    // evenly.
    all.push(block_case(Blocks { m: 8, k: 1056, formats: &[(Quant::Q5_1, 3)], ..plain }));
    all.push(block_case(Blocks { m: 1, k: 1280, formats: &[(Quant::Q4K, 33)], ..plain }));
    // For CUDA: enough rows that blocks are dequantized for activations in half precision, and
    // enough for the largest tiles.
    let many: &[_] = &[(Quant::Q6K, 70), (Quant::Q4K, 33)];
    for (dtype, formats) in
        [(DType::F16, many), (DType::BF16, many), (DType::BF16, &[(Quant::Q4K, 33), (Quant::Q8_0, 40)])]
    {
        all.push(block_case(Blocks { dtype, m: 130, formats, epilogue: Some(Activation::Gelu), ..plain }));
    }
    all.push(block_case(Blocks { m: 1030, k: 256, formats: many, ..plain }));
    for dtype in DType::FLOATS {
        // Rows that are and are not aligned for reads of four elements.
        for (m, gap) in [(1, 3), (5, 8), (6, 1), (40, 2)] {
            let mixed: &[_] = &[(Quant::Q6K, 37), (Quant::Q8_0, 66), (Quant::Q4K, 5)];
            let epilogue = Some(Activation::Gelu);
            all.push(block_case(Blocks { dtype, m, formats: mixed, epilogue, gap, ..plain }));
        }
    }
    all
}

/// Every format with every number of rows that has its own CUDA kernel, and products large enough
/// for the kernels of large products.
pub(crate) fn cases_of_cuda() -> Vec<Case> {
    let plain = Blocks { k: 256, ..Blocks::default() };
    let of = |quant: Quant| {
        let formats = &[(quant, 33)];
        let few = [2, 4, 8, 16, 20, 1030].map(|m| block_case(Blocks { m, formats, ..plain }));
        let many = Blocks { dtype: DType::F16, m: 130, formats, is_rounded: true, ..plain };
        few.into_iter().chain([block_case(many)]).collect::<Vec<_>>()
    };
    // Copies in floats, read by many rows and not by few.
    let formats: &[_] = &[(Quant::Q6K, 70), (Quant::Q4K, 34)];
    let copied = |(dtype, m)| {
        let is_rounded = m >= 128;
        block_case(Blocks { dtype, m, formats, epilogue: Some(Activation::Gelu), is_rounded, is_copied: true, ..plain })
    };
    let copied = [(DType::F16, 130), (DType::BF16, 130), (DType::F16, 5)].map(copied);
    Quant::all().flat_map(of).chain(copied).chain(large_cases::cases()).collect()
}

/// Inputs of a case.
#[derive(Clone)]
struct Product {
    x: Input, // [m, gap + k]; the last k elements of each row are multiplied
    w: Input, // [n, k]
    bias: Option<Input>,
    residual: Option<Input>,
    activation: Activation,
    storage: Storage,
}

/// Storage format of the weight.
#[derive(Clone)]
enum Storage {
    Floats,
    Bytes,
    /// Stacked matrices in block formats, stored in this way; the product's `w` has the dequantized
    /// values.
    Blocks(Vec<InBlocks>, WeightFormat),
}

impl Product {
    /// m, k and n.
    fn sizes(&self) -> (usize, usize, usize) {
        (self.x.dims[0], self.w.dims[1], self.w.dims[0])
    }

    /// Elements between the end of a row of x and the start of the next.
    fn gap(&self) -> usize {
        self.x.dims[1] - self.w.dims[1]
    }

    fn case(self, name: String, tolerance: Tolerance) -> Case {
        let (m, k, n) = self.sizes();
        let (dtype, flops, known) = (self.x.dtype, 2 * (m * k * n) as u64, self.clone());
        let prepare = Box::new(move |place: &Place| self.call(place));
        Case { op: "linear", name, dtype, tolerance, flops, prepare, reference: Box::new(move || known.answer()) }
    }

    fn call(&self, place: &Place) -> Result<Call> {
        let (_, k, n) = self.sizes();
        let mut entries = vec![("weight", &self.w)];
        entries.extend(self.bias.as_ref().map(|b| ("bias", b)));
        let biased = self.bias.is_some();
        let layer = match &self.storage {
            Storage::Floats => Linear::load(&weights(&entries, place), k, n, biased)?,
            Storage::Bytes => Linear::load(&weights(&entries, place).with_format(WeightFormat::Bytes), k, n, biased)?,
            Storage::Blocks(parts, format) => {
                let part =
                    |blocks: &InBlocks| (blocks.weights(self.x.dtype, place).with_format(*format), blocks.dims[0]);
                let layer = Linear::joined(&parts.iter().map(part).collect::<Vec<_>>(), k, false)?;
                match &self.bias {
                    Some(bias) => layer.with_bias(bias.on(place)?)?,
                    None => layer,
                }
            }
        };
        let layer = layer.with(self.activation);
        let mut x = self.x.on(place)?;
        if self.gap() > 0 {
            x = x.narrow(1, self.gap(), k)?;
        }
        let residual = self.residual.as_ref().map(|r| r.on(place)).transpose()?;
        Ok(Box::new(move || layer.run(&x, residual.as_ref())))
    }

    fn answer(&self) -> Vec<f64> {
        let ((_, k, _), activation) = (self.sizes(), self.activation);
        let x = self.x.columns(self.gap(), k);
        let (bias, residual) = [&self.bias, &self.residual].map(|i| i.as_ref().map(|i| &**i.values)).into();
        linear(&Problem { x: &x, w: &self.w.values, bias, k, activation, residual })
    }
}

/// A product with weights in block formats.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    dtype: DType,
    m: usize,
    k: usize,
    /// Number of outputs in each format.
    formats: &'a [(Quant, usize)],
    /// If set, adds a bias, this activation and, unless it is `None`, a residual.
    epilogue: Option<Activation>,
    /// Elements between the end of a row of x and the start of the next.
    gap: usize,
    /// Whether every kernel rounds the weights to `dtype`: the reference does too.
    is_rounded: bool,
    /// Whether there is a copy of the weights in `dtype`.
    is_copied: bool,
}

impl Default for Blocks<'_> {
    fn default() -> Self {
        let (dtype, is_rounded, is_copied) = (DType::F32, false, false);
        Blocks { dtype, m: 1, k: 0, formats: &[], epilogue: None, gap: 0, is_rounded, is_copied }
    }
}

/// The activations are exact in 8 bits, so that kernels that quantize them and forms that do not
/// have the same result.
fn block_case(Blocks { dtype, m, k, formats, epilogue, gap, is_rounded, is_copied }: Blocks<'_>) -> Case {
    let n = formats.iter().map(|(_, n)| n).sum();
    let seed = formats[0].0 as u64 * 2 + 1000;
    let w = Input::normal(seed, &[n, k], DType::F32, (0.0, 1.0 / (k as f32).sqrt()));
    let (mut parts, mut from) = (Vec::new(), 0);
    for &(quant, n) in formats {
        let (w, part) = (w.clone(), from..from + n * k);
        from = part.end;
        parts.push(InBlocks::of(seed, quant, [n, k], move || w.values[part].to_vec()));
    }
    let integers = move |i: usize, v: f32| match (i % (gap + k)).checked_sub(gap) {
        Some(i) if i % 32 == 0 => 127.0 / 64.0,
        _ => (40.0 * v).round().clamp(-127.0, 127.0) / 64.0,
    };
    let x = Input::normal(seed + 1, &[m, gap + k], DType::F32, (0.0, 1.0));
    let x = Input { dtype, ..x.map(integers) };
    let known = parts.clone();
    let weight_dtype = if is_rounded { dtype } else { DType::F32 };
    let w = Input::new(&[n, k], DType::F32, move || {
        known.iter().flat_map(InBlocks::values).map(|v| round(weight_dtype, *v)).collect()
    });
    let bias = epilogue.map(|_| Input::normal(seed + 2, &[n], dtype, (0.0, 0.5)));
    let activation = epilogue.unwrap_or(Activation::None);
    let residual = (activation != Activation::None).then(|| Input::normal(seed + 3, &[m, n], dtype, (0.0, 1.0)));
    let names: Vec<_> = formats.iter().map(|(quant, _)| quant.to_string()).collect();
    let label = |condition: bool, what: &'static str| if condition { what } else { "" };
    let options = [
        label(bias.is_some(), " bias"),
        label(activation != Activation::None, " activation"),
        label(residual.is_some(), " residual"),
        label(gap > 0, " gaps"),
        label(is_copied, " copied"),
    ];
    let name = format!("{m}x{k}x{n} in {}{}", names.join(" and "), options.concat());
    // As for other products. The block scales and the sums of minimums add one rounding each per
    // step. With many rows of activations in half precision a kernel may round the weights to it,
    // which is a third of a rounding of the result's usual size, and three times that at worst;
    // none of it shows if the reference does the same.
    let (fused, composed) = match dtype {
        DType::F32 => (1.0, 2.0),
        _ if is_rounded => (1.0, 5.0),
        DType::F16 => (2.0, 5.0),
        _ if m >= 128 => (2.0, 5.0),
        _ => (1.0, 5.0),
    };
    let tolerance = Tolerance { fused, composed, sums: 8.0 + 4.0 * (k as f64).sqrt() };
    let format = if is_copied { WeightFormat::FileAndActivations } else { WeightFormat::File };
    Product { x, w, bias, residual, activation, storage: Storage::Blocks(parts, format) }.case(name, tolerance)
}

/// Weights in int8. A row of x, and one of W, consists of integers up to 127 times a power of two:
/// 8 bits hold it exactly, so the reference needs no rounding, and forms that do not quantize have
/// the same result. In every fifth row of x the largest element is an outlier, so that the row is
/// multiplied in two parts.
fn int8_case(seed: u64, dtype: DType, (m, k, n, activation, bias): Shape) -> Case {
    let integers = |seed, rows: usize, step: f32, small: f32| {
        let value = move |i: usize, v: f32| {
            let v = if i / k % 5 == 3 { v * small } else { v };
            let code = if i % k == i / k % k { 127.0 } else { v.round().clamp(-127.0, 127.0) };
            code * step * [0.5, 1.0, 2.0][i / k % 3]
        };
        Input { dtype, ..Input::normal(seed, &[rows, k], DType::F32, (0.0, 40.0)).map(value) }
    };
    // Scaled so that sums are about one.
    let x = integers(seed + 2000, m, 1.0 / 32.0, 0.05);
    let w = integers(seed + 3000, n, (-(48.0 * (k as f32).sqrt()).log2().ceil()).exp2(), 1.0);
    let bias = bias.then(|| Input::normal(seed + 4000, &[n], dtype, (0.0, 0.5)));
    let residual = (m == 128).then(|| Input::normal(seed + 5000, &[m, n], dtype, (0.0, 1.0)));
    case_of(Product { x, w, bias, residual, activation, storage: Storage::Bytes })
}

fn float_case(seed: u64, dtype: DType, (m, k, n, activation, bias): Shape) -> Case {
    // One shape reads x from a view with gaps between its rows.
    let gaps = m == 30;
    let x = Input::normal(seed * 3 + 1, &[m, if gaps { 2 * k } else { k }], dtype, (0.0, 1.0));
    let w = Input::normal(seed * 3 + 2, &[n, k], dtype, (0.0, 1.0 / (k as f32).sqrt()));
    let bias = bias.then(|| Input::normal(seed * 3 + 3, &[n], dtype, (0.0, 0.5)));
    // Some shapes add a residual, two of them after an activation.
    let residual =
        matches!(m, 2 | 8 | 70 | 128 | 200).then(|| Input::normal(seed * 3 + 50, &[m, n], dtype, (0.0, 1.0)));
    case_of(Product { x, w, bias, residual, activation, storage: Storage::Floats })
}

/// Products with activations in the case's dtype, for any format of the weight.
fn case_of(product: Product) -> Case {
    let ((m, k, n), activation) = (product.sizes(), product.activation);
    let label = |condition: bool, what: &'static str| if condition { what } else { "" };
    let options = [
        label(product.bias.is_some(), " bias"),
        label(matches!(product.storage, Storage::Bytes), " in int8"),
        label(product.gap() > 0, " gaps"),
        label(product.residual.is_some(), " residual"),
    ];
    // One rounding of the result. Composed rounds the product, the sum and the activation, whose
    // slope passes the first two on, and the sum with the residual. Sums: the k partial sums are of
    // size one at the end, and their roundings are a random walk, about √k/2 in all; the worst of
    // tens of thousands of elements is four times that.
    let tolerance = Tolerance { fused: 1.0, composed: 5.0, sums: 8.0 + 2.0 * (k as f64).sqrt() };
    product.case(format!("{m}x{k}x{n} {activation:?}{}", options.concat()), tolerance)
}
