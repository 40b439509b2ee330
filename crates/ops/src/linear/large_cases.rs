//! Cases of products that are large enough for CUDA's kernels of large products, some with a layer
//! norm, and of quantized weights that are dequantized in several passes. A reference of all rows
//! would take minutes, so only a sample of rows is compared.

use super::Linear;
use super::reference::{Problem, linear};
use crate::case::{Call, Case, InBlocks, Input, Lazy, Tolerance, weights};
use crate::layer_norm::reference::of_sums;
use crate::quant::{DEQUANTIZE_ROWS, rows_as_floats};
use crate::{Activation, DType, LayerNorm, Place, Quant, Result, Tensor, embed};

/// Every 257th row is compared, and the last.
const STEP: usize = 257;

const EPS: f32 = 1e-5;

/// What follows the product and its bias.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EpilogueKind {
    Activation(Activation),
    Residual,
    /// A residual and a layer norm.
    Norm,
}

/// Sized for a card of 132 multiprocessors, in 16-bit dtypes.
pub(super) fn cases() -> Vec<Case> {
    let plain = EpilogueKind::Activation(Activation::None);
    let gelu = EpilogueKind::Activation(Activation::Gelu);
    // Rows, depth and columns; rows end within a tile, and depths within a step. In turn: W
    // resident in shared memory, W shared by two thread blocks, the other tiles, and rows of one
    // and of two thread blocks that end in a norm.
    let shapes = [
        (4200, 360, 384, plain),
        (4200, 384, 384, gelu),
        (3300, 440, 3072, plain),
        (3300, 448, 3072, gelu),
        (1100, 136, 1024, EpilogueKind::Residual),
        (1100, 136, 1024, gelu),
        (1100, 136, 1024, EpilogueKind::Activation(Activation::Silu)),
        (12700, 136, 384, EpilogueKind::Norm),
        (6400, 200, 768, EpilogueKind::Norm),
    ];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    [DType::F16, DType::BF16].into_iter().flat_map(case).chain([in_passes()]).collect()
}

/// More rows of W than are dequantized at once: the first pass ends within the second matrix, whose
/// blocks have another length. Both formats are exact in f16.
fn in_passes() -> Case {
    const K: usize = 4096;
    let parts = [(Quant::Tq2_0, 9000), (Quant::Mxfp4, 8000)];
    debug_assert!((9000..17_000).contains(&rows_as_floats(K, DType::F16)));
    let parts = parts.map(|(quant, n)| InBlocks::of(7500, quant, [n, K], move || vec![0.0; n * K]));
    // Integers, so that 8 bits hold the activations too.
    let x = Input::normal(7501, &[DEQUANTIZE_ROWS + 2, K], DType::F32, (0.0, 30.0));
    let x = Input { dtype: DType::F16, ..x.map(|_, v| v.round().clamp(-127.0, 127.0) / 64.0) };
    let rows = [0, 70, DEQUANTIZE_ROWS + 1];
    let (inputs, known) = (x.clone(), parts.clone());
    let call = move |place: &Place| -> Result<Call> {
        let part = |blocks: &InBlocks| (blocks.weights(x.dtype, place), blocks.dims[0]);
        let layer = Linear::joined(&parts.iter().map(part).collect::<Vec<_>>(), K, false)?;
        let (x, rows) = (x.on(place)?, Tensor::from_u32(&rows.map(|row| row as u32), place)?);
        Ok(Box::new(move || embed(&[(&layer.run(&x, None)?, &rows)])))
    };
    let answer = move || {
        let x: Vec<f32> = rows.iter().flat_map(|row| inputs.values[row * K..][..K].to_vec()).collect();
        let w: Vec<f32> = known.iter().flat_map(|blocks| blocks.values().to_vec()).collect();
        linear(&Problem { x: &x, w: &w, bias: None, k: K, activation: Activation::None, residual: None })
    };
    let m = DEQUANTIZE_ROWS + 2;
    Case {
        op: "linear",
        name: format!("{m}x{K}x17000 in tq2_0 and mxfp4"),
        dtype: DType::F16,
        tolerance: Tolerance { fused: 1.0, composed: 5.0, sums: 8.0 + 2.0 * (K as f64).sqrt() },
        flops: 2 * (m * K * 17_000) as u64,
        prepare: Box::new(call),
        reference: Box::new(answer),
    }
}

#[derive(Clone)]
struct Large {
    x: Input,
    w: Input,
    bias: Input,
    residual: Input,
    /// The norm's weight and bias.
    norm: [Input; 2],
    epilogue: EpilogueKind,
    rows: Vec<u32>,
}

fn one(i: u64, dtype: DType, (m, k, n, epilogue): (usize, usize, usize, EpilogueKind)) -> Case {
    let normal = |j: u64, dims: &[usize], of| Input::normal(7000 + 10 * i + j, dims, dtype, of);
    let large = Large {
        x: normal(0, &[m, k], (0.0, 1.0)),
        w: normal(1, &[n, k], (0.0, 1.0 / (k as f32).sqrt())),
        bias: normal(2, &[n], (0.0, 0.5)),
        residual: normal(3, &[m, n], (0.5, 1.0)),
        norm: [normal(4, &[n], (1.0, 0.3)), normal(5, &[n], (0.0, 0.3))],
        epilogue,
        rows: (0..m).step_by(STEP).chain([m - 1]).map(|row| row as u32).collect(),
    };
    let epilogue = match epilogue {
        EpilogueKind::Activation(activation) => format!("{activation:?}"),
        EpilogueKind::Residual => "residual".into(),
        EpilogueKind::Norm => "residual norm".into(),
    };
    let inputs = large.clone();
    Case {
        op: "linear",
        name: format!("{m}x{k}x{n} {epilogue}"),
        dtype,
        // As for other products. A norm adds a rounding if it is a separate call.
        tolerance: Tolerance {
            fused: if large.epilogue == EpilogueKind::Norm { 2.0 } else { 1.0 },
            composed: 5.0,
            sums: 8.0 + 2.0 * (k as f64).sqrt(),
        },
        flops: 2 * (m * k * n) as u64,
        prepare: Box::new(move |place| large.call(place)),
        reference: Box::new(move || inputs.answer()),
    }
}

impl Large {
    fn call(&self, place: &Place) -> Result<Call> {
        let (k, n, epilogue) = (self.x.dims[1], self.w.dims[0], self.epilogue);
        let layer = Linear::load(&weights(&[("weight", &self.w), ("bias", &self.bias)], place), k, n, true)?;
        let layer = match epilogue {
            EpilogueKind::Activation(activation) => layer.with(activation),
            _ => layer,
        };
        let [weight, bias] = &self.norm;
        let norm = LayerNorm::load(&weights(&[("weight", weight), ("bias", bias)], place), n, EPS, true)?;
        let (x, rows) = (self.x.on(place)?, Tensor::from_u32(&self.rows, place)?);
        let residual = match epilogue {
            EpilogueKind::Activation(_) => None,
            _ => Some(self.residual.on(place)?),
        };
        Ok(Box::new(move || {
            let y = match &residual {
                Some(residual) if epilogue == EpilogueKind::Norm => layer.forward_normed(&x, residual, &norm)?,
                residual => layer.run(&x, residual.as_ref())?,
            };
            embed(&[(&y, &rows)])
        }))
    }

    fn answer(&self) -> Vec<f64> {
        let (k, n) = (self.x.dims[1], self.w.dims[0]);
        let of = |values: &Lazy<Vec<f32>>, width: usize| -> Vec<f32> {
            self.rows.iter().flat_map(|row| values[*row as usize * width..][..width].to_vec()).collect()
        };
        let activation = match self.epilogue {
            EpilogueKind::Activation(activation) => activation,
            _ => Activation::None,
        };
        let residual = (!matches!(self.epilogue, EpilogueKind::Activation(_))).then(|| of(&self.residual.values, n));
        let bias = Some(&**self.bias.values);
        let (x, w) = (of(&self.x.values, k), &self.w.values);
        let y = linear(&Problem { x: &x, w, bias, k, activation, residual: residual.as_deref() });
        let [weight, bias] = &self.norm;
        if self.epilogue == EpilogueKind::Norm { of_sums(&y, &weight.values, Some(&**bias.values), EPS) } else { y }
    }
}
