//! Cases: some experts with many rows, some with one, some with none; one at a time, and all; gated, with probabilities that sum
//! to one, and with a residual.

use super::reference::{self, Problem};
use super::{ExpertParts, ExpertShape, Experts};
use crate::case::{Case, Input, Tolerance, weights};
use crate::{Activation, DType};

pub(crate) fn cases() -> Vec<Case> {
    // tokens, width, inner width, experts, chosen, gated
    let shapes = [
        (40, 96, 200, 8, 2, false),
        (3, 33, 17, 8, 1, false),
        (1, 20, 40, 4, 4, false),
        (30, 64, 48, 6, 3, true),
        (1, 33, 17, 8, 2, true),
        // More experts than one call of a GPU takes, with one pair each or so, and with more.
        (5, 36, 44, 21, 4, false),
        (11, 33, 29, 20, 3, true),
        // Several tiles an expert.
        (300, 12, 70, 5, 1, false),
        (200, 8, 36, 6, 2, true),
    ];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    DType::FLOATS.into_iter().flat_map(case).collect()
}

type Shape = (usize, usize, usize, usize, usize, bool);

fn one(seed: u64, dtype: DType, (tokens, n, inner, experts, top, gated): Shape) -> Case {
    let normal = |i: u64, dims: &[usize], spread: f32| Input::normal(seed * 5 + i + 1100, dims, dtype, (0.0, spread));
    let x = normal(0, &[tokens, n], 1.0);
    // Gates first, then what they are for.
    let rows = if gated { 2 * inner } else { inner };
    let up = normal(1, &[experts * rows, n], 1.0 / (n as f32).sqrt());
    let down = normal(2, &[experts * inner, n], 1.0 / (inner as f32).sqrt());
    let bias = normal(3, &[n], 0.3);
    let router = Input::normal(seed * 5 + 1104, &[experts, n], DType::F32, (0.0, 1.5 / (n as f32).sqrt()));
    let kept = (x.clone(), router.clone(), up.clone(), down.clone(), bias.clone());
    Case {
        op: "experts",
        name: format!("{tokens}x{n}, {top} of {experts} with {inner}{}", if gated { ", gated" } else { "" }),
        dtype,
        // Rounded between the two products and after the second, each error spread over a sum, and once at the end. Composed
        // also rounds around the activation.
        tolerance: Tolerance { fused: 3.0, composed: 5.0, sums: 16.0 + 2.0 * (inner as f64).sqrt() },
        flops: 4 * (tokens * top * n * inner) as u64,
        prepare: Box::new(move |place| {
            let w = weights(&[("up", &up), ("down", &down), ("bias", &bias)], place);
            let part = |name, rows, turned| {
                let shape = ExpertShape { experts, rows, columns: n, turned };
                (0..experts).map(|e| Experts::part(&w, name, e, shape)).collect::<crate::Result<Vec<_>>>()
            };
            let bias = Some(w.tensor("bias", &[n])?);
            let (up, down) = (part("up", rows, false)?, part("down", inner, true)?);
            let parts = ExpertParts { up: &up, down: &down, bias };
            let layer = Experts::new(router.on(place)?, parts, Activation::Gelu, top)?;
            let x = x.on(place)?;
            if gated {
                let layer = layer.gated()?.renormalised();
                return Ok(Box::new(move || layer.forward_residual(&x, &x)));
            }
            Ok(Box::new(move || layer.forward(&x)))
        }),
        reference: Box::new(move || {
            let (x, router, up, down, bias) = &kept;
            reference::experts(&Problem {
                x: &x.values,
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
