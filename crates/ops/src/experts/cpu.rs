//! Expert by expert: gathers the rows routed to it, computes its two products, and adds the results
//! to their tokens.

use super::{Experts, ExpertsOp};
use crate::buffer_pool::PooledBuffer;
use crate::cpu::elem::{Elem, with_elem};
use crate::cpu::rows::{Reading, Rows};
use crate::cpu::{Isa, team};
use crate::glu::gated;
use crate::linear::{EpilogueParams, Weight, product};
use crate::tensor::host;
use crate::{Activation, Result};

pub(super) fn run(op: &ExpertsOp, isa: Isa) -> Result<candle_core::Tensor> {
    let (n, experts) = (op.x.dims()[1], &op.experts);
    let router = Reading::of(&experts.router)?;
    let router = router.rows::<f32>()?;
    with_elem!("experts", op.x.dtype(), T => {
        let x = Reading::of(&op.x)?;
        let x = x.rows::<T>()?;
        let mut routes = vec![Vec::new(); x.rows];
        team::each_chunk_mut(&mut routes, 1, |t, routes| routes[0] = route(t, x.row(t), router, experts));
        let routes = routes.concat();
        let mut sums = vec![0f32; x.rows * n];
        for (e, (up, down)) in experts.up.iter().zip(&*experts.down).enumerate() {
            let tokens: Vec<(usize, f32)> = routes.iter().filter(|c| c.1 == e).map(|c| (c.0, c.2)).collect();
            if tokens.is_empty() {
                continue;
            }
            let gathered: Vec<T> = tokens.iter().flat_map(|(t, _)| x.row(*t).iter().copied()).collect();
            let inner = match experts.gated {
                true => gated(isa, &linear_act(isa, &gathered, up, Activation::None)?, down.k(), experts.activation),
                false => linear_act(isa, &gathered, up, experts.activation)?,
            };
            let y = linear_act(isa, &inner, down, Activation::None)?;
            for ((t, p), y) in tokens.iter().zip(y.chunks_exact(n)) {
                sums[t * n..][..n].iter_mut().zip(y).for_each(|(sum, y)| *sum += p * y.wide());
            }
        }
        let bias = experts.bias.as_ref().map(Reading::of).transpose()?;
        if let Some(bias) = &bias {
            let bias = bias.slice::<T>()?;
            sums.chunks_exact_mut(n).for_each(|row| row.iter_mut().zip(bias).for_each(|(sum, b)| *sum += b.wide()));
        }
        let residual = op.residual.as_ref().map(Reading::of).transpose()?;
        if let Some(residual) = &residual {
            sums.iter_mut().zip(residual.slice::<T>()?).for_each(|(sum, r)| *sum += r.wide());
        }
        host(sums.into_iter().map(T::narrow).collect::<Vec<T>>(), op.x.dims())
    })
}

/// act(x · Wᵀ).
fn linear_act<T: Elem>(isa: Isa, x: &[T], weight: &Weight, activation: Activation) -> Result<PooledBuffer<T>> {
    let k = weight.k();
    let x = Rows { data: x, rows: x.len() / k, cols: k, stride: k };
    product(isa, x, weight, EpilogueParams { bias: None, activation, residual: None })
}

/// (token, expert, probability) of the `top` likeliest experts of a token; of equals the first. In
/// plain f64: a few thousand multiplications, beside millions in the experts.
fn route<T: Elem>(token: usize, x: &[T], router: Rows<'_, f32>, experts: &Experts) -> Vec<(usize, usize, f32)> {
    let dot = |w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(x.wide()) * f64::from(*w)).sum::<f64>();
    let logits: Vec<f64> = (0..router.rows).map(|e| dot(router.row(e))).collect();
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Vec<f64> = logits.iter().map(|l| (l - largest).exp()).collect();
    let mut order: Vec<usize> = (0..router.rows).collect();
    order.sort_by(|a, b| e[*b].total_cmp(&e[*a]));
    let selected = &order[..experts.top];
    let sum: f64 = if experts.renormalised { selected.iter().map(|i| e[*i]).sum() } else { e.iter().sum() };
    selected.iter().map(|i| (token, *i, (e[*i] / sum) as f32)).collect()
}
