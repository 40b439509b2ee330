//! What every kernel of a product on Metal is given: x, what follows the product, and which columns of y are its own.

use crate::Activation;
use crate::launch::metal::View;
use crate::launch::metal::buffers::Made;
use std::ops::Range;

/// y[.., columns] = act(x · Wᵀ + bias[columns]) + residual[.., columns] for a part of W whose rows are `columns`.
pub(crate) struct Product<'a> {
    /// `[.., k]`; see [`View::rows`].
    pub(crate) x: &'a View,
    /// `[width]`, of the whole of y.
    pub(crate) bias: Option<&'a View>,
    /// In the kernel `ushort(activation as u16)`: the prelude numbers them alike.
    pub(crate) activation: Activation,
    /// As y, but it may be a view: see [`View::rows`].
    pub(crate) residual: Option<&'a View>,
    /// `[rows, width]`.
    pub(crate) y: &'a Made,
    /// Of a row of y.
    pub(crate) width: usize,
    /// Those of y that this part makes.
    pub(crate) columns: Range<usize>,
}
