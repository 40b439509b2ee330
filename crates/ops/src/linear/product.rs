//! What every kernel of a product on a GPU is given: x, what follows the product, and which columns of y are its own.

use crate::Activation;
use std::ops::Range;

/// y[.., columns] = act(x · Wᵀ + bias[columns]) + residual[.., columns] for a part of W whose rows are `columns`, with tensors that
/// are a device's `V`, and its `M` where they are made.
pub(crate) struct Product<'a, V, M> {
    /// `[.., k]`; see [`Strided::rows`](crate::launch::strided::Strided::rows).
    pub(crate) x: &'a V,
    /// `[width]`, of the whole of y.
    pub(crate) bias: Option<&'a V>,
    /// In the kernels a number: their preludes count them alike.
    pub(crate) activation: Activation,
    /// As y, but it may be a view.
    pub(crate) residual: Option<&'a V>,
    /// `[rows, width]`.
    pub(crate) y: &'a M,
    /// Of a row of y.
    pub(crate) width: usize,
    /// Those of y that this part makes.
    pub(crate) columns: Range<usize>,
}
