//! Cases: every activation, with and without bias, sizes on and off the panel and tile, one row and many; weights in blocks and in bytes.

use super::Linear;
use super::reference::{Problem, linear};
use crate::case::{Case, Input, Tolerance, weight_in_blocks, weights};
use crate::quant::{dequantize, quantize};
use crate::{Activation, DType, Keep, Quant, Tensor};

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
    ];
    let bytes = [
        (1, 384, 384, Activation::None, true),
        (37, 384, 1152, Activation::Gelu, true),
        (128, 1536, 384, Activation::None, true),
        (200, 33, 65, Activation::Relu, false),
        (13, 130, 31, Activation::Tanh, true),
    ];
    let in_bytes = |dtype| bytes.iter().enumerate().map(move |(i, s)| in_bytes(i as u64, dtype, *s));
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    let blocks = Quant::all().filter(|quant| quant.packs() && quant.quantizes());
    let blocks = blocks.flat_map(|quant| [1, 37].map(|m| in_blocks(m, quant)));
    let bytes = DType::FLOATS.into_iter().flat_map(in_bytes);
    DType::FLOATS.into_iter().flat_map(case).chain(blocks).chain(bytes).collect()
}

/// Weights in blocks, and activations that 8 bits hold exactly, so that kernels which round them to that and forms that do not
/// have the same answer.
fn in_blocks(m: usize, quant: Quant) -> Case {
    let (k, n) = (512, 70);
    let seed = quant as u64 * 2 + 1000;
    let w = Input::normal(seed, &[n, k], DType::F32, (0.0, 1.0 / (k as f32).sqrt()));
    let mut bytes = Vec::new();
    let mut rounded = vec![0.0; n * k];
    // Whole blocks of a format that is made and read.
    let made = quantize(quant, &w.values, &mut bytes).and_then(|()| dequantize(quant, &bytes, &mut rounded));
    debug_assert!(made.is_ok());
    let whole = |(i, v): (usize, &f32)| if i % 32 == 0 { 127.0 } else { (40.0 * v).round().clamp(-127.0, 127.0) };
    let x = Input::normal(seed + 1, &[m, k], DType::F32, (0.0, 1.0));
    let x = Input { values: x.values.iter().enumerate().map(whole).map(|v| v / 64.0).collect(), ..x };
    let rx = x.clone();
    Case {
        op: "linear",
        name: format!("{m}x{k}x{n} in {quant}"),
        dtype: DType::F32,
        // As for other products. The scales of blocks and the sums of least values are roundings more, one each a step.
        tolerance: Tolerance { fused: 1.0, composed: 2.0, sums: 8.0 + 4.0 * (k as f64).sqrt() },
        flops: 2 * (m * k * n) as u64,
        prepare: Box::new(move |place| {
            let layer = Linear::load(&weight_in_blocks(quant, &[n, k], bytes.clone(), place), k, n, false)?;
            let x = x.on(place)?;
            Ok(Box::new(move || layer.forward(&x)))
        }),
        reference: Box::new(move || {
            let (bias, residual, activation) = (None, None, Activation::None);
            linear(&Problem { x: &rx.values, w: &rounded, bias, k, activation, residual })
        }),
    }
}

/// Weights kept in bytes. A row of x, and one of W, is whole numbers of which the largest is 127, times a power of two: 8 bits hold
/// it exactly, so that the reference needs to know of no rounding, and forms that do not round have the same answer.
fn in_bytes(seed: u64, dtype: DType, (m, k, n, activation, bias): (usize, usize, usize, Activation, bool)) -> Case {
    let whole = |seed, rows: usize, step: f32| {
        let normal = Input::normal(seed, &[rows, k], DType::F32, (0.0, 40.0));
        let value = |(i, v): (usize, &f32)| {
            let code = if i % k == i / k % k { 127.0 } else { v.round().clamp(-127.0, 127.0) };
            code * step * [0.5, 1.0, 2.0][i / k % 3]
        };
        Input { values: normal.values.iter().enumerate().map(value).collect(), dtype, ..normal }
    };
    // Sums come to about one.
    let (x, w) =
        (whole(seed + 2000, m, 1.0 / 32.0), whole(seed + 3000, n, (-(48.0 * (k as f32).sqrt()).log2().ceil()).exp2()));
    let b = bias.then(|| Input::normal(seed + 4000, &[n], dtype, (0.0, 0.5)));
    let r = (m == 128).then(|| Input::normal(seed + 5000, &[m, n], dtype, (0.0, 1.0)));
    let (rx, rw, rb, rr) = (x.clone(), w.clone(), b.clone(), r.clone());
    Case {
        op: "linear",
        name: format!("{m}x{k}x{n} {activation:?}{} in int8", if bias { " bias" } else { "" })
            + if r.is_some() { " residual" } else { "" },
        dtype,
        // As for other products.
        tolerance: Tolerance { fused: 1.0, composed: 5.0, sums: 8.0 + 2.0 * (k as f64).sqrt() },
        flops: 2 * (m * k * n) as u64,
        prepare: Box::new(move |place| {
            let mut entries = vec![("weight", &w)];
            entries.extend(b.as_ref().map(|b| ("bias", b)));
            let layer = Linear::load(&weights(&entries, place).keeping(Keep::Bytes), k, n, bias)?.with(activation);
            let (x, r) = (x.on(place)?, r.as_ref().map(|r| r.on(place)).transpose()?);
            Ok(Box::new(move || layer.run(&x, r.as_ref())))
        }),
        reference: Box::new(move || {
            let (bias, residual) = (rb.as_ref().map(|b| &*b.values), rr.as_ref().map(|r| &*r.values));
            linear(&Problem { x: &rx.values, w: &rw.values, bias, k, activation, residual })
        }),
    }
}

fn one(seed: u64, dtype: DType, (m, k, n, activation, bias): (usize, usize, usize, Activation, bool)) -> Case {
    // One shape is fed from a view with gaps between its rows.
    let gaps = m == 30;
    let x = Input::normal(seed * 3 + 1, &[m, if gaps { 2 * k } else { k }], dtype, (0.0, 1.0));
    let w = Input::normal(seed * 3 + 2, &[n, k], dtype, (0.0, 1.0 / (k as f32).sqrt()));
    let b = bias.then(|| Input::normal(seed * 3 + 3, &[n], dtype, (0.0, 0.5)));
    // Two shapes add a residual, one of them behind an activation.
    let r = matches!(m, 128 | 200).then(|| Input::normal(seed * 3 + 50, &[m, n], dtype, (0.0, 1.0)));
    let (rw, rb, rr) = (w.clone(), b.clone(), r.clone());
    let rx = if gaps { x.values.chunks(k).skip(1).step_by(2).flatten().copied().collect() } else { x.values.clone() };
    Case {
        op: "linear",
        name: format!("{m}x{k}x{n} {activation:?}{}", if bias { " bias" } else { "" })
            + if gaps { " gaps" } else { "" }
            + if r.is_some() { " residual" } else { "" },
        dtype,
        // One rounding of the result. Composed rounds the product, the sum and the activation, whose slope passes the first
        // two on, and the sum with the residual. Sums: the k partial sums are of size one at the end, and their roundings walk at random, about √k/2 in
        // all; the worst of tens of thousands of elements is four times that.
        tolerance: Tolerance { fused: 1.0, composed: 5.0, sums: 8.0 + 2.0 * (k as f64).sqrt() },
        flops: 2 * (m * k * n) as u64,
        prepare: Box::new(move |place| {
            let mut entries = vec![("weight", &w)];
            entries.extend(b.as_ref().map(|b| ("bias", b)));
            let layer = Linear::load(&weights(&entries, place), k, n, bias)?.with(activation);
            let mut x: Tensor = x.on(place)?;
            if gaps {
                // Every other row of twice as many.
                x = x.reshape(&[m, 2, k])?.select(1, 1)?;
            }
            let r = r.as_ref().map(|r| r.on(place)).transpose()?;
            Ok(Box::new(move || layer.run(&x, r.as_ref())))
        }),
        reference: Box::new(move || {
            let (bias, residual) = (rb.as_ref().map(|b| &*b.values), rr.as_ref().map(|r| &*r.values));
            linear(&Problem { x: &rx, w: &rw.values, bias, k, activation, residual })
        }),
    }
}
