//! Launches the kernels of the parts.

use super::LinearOp;
use super::product::Product;
use super::weight::Data;
use crate::launch::metal::{Call, View};
use crate::{Error, Result, quant};

pub(super) fn run(op: &LinearOp) -> Result<candle_core::Tensor> {
    let x = View::of(&op.x)?;
    let bias = op.bias.as_ref().map(View::whole).transpose()?;
    let residual = op.residual.as_ref().map(View::of).transpose()?;
    let width = op.weight.n;
    let y = Call::room(&x, x.rows()?.rows * width, op.x.dtype())?;
    let mut first = 0;
    for part in &*op.weight.parts {
        let columns = first..first + part.n;
        let (bias, residual) = (bias.as_ref(), residual.as_ref());
        let p = Product { x: &x, bias, activation: op.activation, residual, y: &y, width, columns };
        match &part.data {
            Data::Raw(quant, blocks) => quant::metal::multiply(&p, *quant, &View::whole(blocks)?)?,
            other => return Err(Error::call("linear", format!("no kernel for a weight in {other:?} on Metal"))),
        }
        first += part.n;
    }
    y.tensor(&[&op.x.dims()[..op.x.dims().len() - 1], &[width]].concat())
}
