//! Arguments of every GPU kernel of a matrix product: x, the epilogue, and the columns of y that
//! the kernel writes.

use crate::Activation;
use std::ops::Range;

/// y[.., columns] = act(x · Wᵀ + bias[columns]) + residual[.., columns] for a part of W whose rows
/// are `columns`. Inputs are a device's `V`, results its `M`.
pub(crate) struct Product<'a, V, M> {
    /// `[.., k]`; see [`Strided::rows`](crate::launch::strided::Strided::rows).
    pub(crate) x: &'a V,
    /// `[width]`, for all columns of y.
    pub(crate) bias: Option<&'a V>,
    /// Kernels get its number: their preludes number the activations in the same order.
    pub(crate) activation: Activation,
    /// The shape of y; may be a view.
    pub(crate) residual: Option<&'a V>,
    /// `[rows, width]`.
    pub(crate) y: &'a M,
    /// Columns of y.
    pub(crate) width: usize,
    /// The columns that this part computes.
    pub(crate) columns: Range<usize>,
}
