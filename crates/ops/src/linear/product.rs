//! What every kernel of a product on Metal is given: x, what follows the product, and which columns of y are its own.

use crate::launch::metal::buffers::Made;
use crate::launch::metal::{Kernel, Told, View};
use crate::{Activation, Result};
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

/// As `Product` in `product.metal`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Sizes {
    rows: u32,
    n: u32,
    k: u32,
    x_stride: u32,
    residual_stride: u32,
    width: u32,
    first: u32,
    bytes: u32,
}

// SAFETY: numbers of four bytes.
#[allow(unsafe_code, reason = "a promise about a layout")]
unsafe impl Told for Sizes {}

impl Product<'_> {
    /// What a kernel is told of it; `bytes`: of a row of W, where that is in blocks.
    pub(crate) fn sizes(&self, bytes: usize) -> Result<Sizes> {
        let x = self.x.rows()?;
        let residual = self.residual.map(|r| r.rows()).transpose()?;
        Ok(Sizes {
            rows: x.rows as u32,
            n: self.columns.len() as u32,
            k: x.cols as u32,
            x_stride: x.stride as u32,
            residual_stride: residual.map_or(0, |r| r.stride as u32),
            width: self.width as u32,
            first: self.columns.start as u32,
            bytes: bytes as u32,
        })
    }

    /// A kernel of `source` for it; `fours`: whether that may read four elements at once.
    pub(crate) fn kernel(&self, source: &'static str, name: String, fours: bool) -> Kernel {
        let kernel = Kernel::new(source, name).flag(self.bias.is_some()).flag(self.residual.is_some());
        kernel.number(self.activation as u16).flag(fours)
    }
}
