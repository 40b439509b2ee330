//! A tensor as a kernel sees it: a buffer, where in it the elements begin, and how far apart they are.

use crate::{DType, Error, Result, Tensor};
use candle_core::backend::BackendStorage;
use candle_core::{MetalDevice, Storage};
use candle_metal_kernels::metal::Buffer;

/// A tensor on a Metal device.
#[derive(Clone)]
pub(crate) struct View {
    pub(super) buffer: Buffer,
    /// Where the first element is, in bytes.
    pub(super) offset: usize,
    pub(super) device: MetalDevice,
    dims: Vec<usize>,
    strides: Vec<usize>,
    dtype: DType,
}

/// Rows of `cols` elements that begin `stride` elements apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
}

/// Vectors of `size` elements, `heads` of them `head` elements apart, and then the next `token` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lines {
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) size: usize,
    pub(crate) token: usize,
    pub(crate) head: usize,
}

impl View {
    pub(crate) fn of(t: &Tensor) -> Result<View> {
        let (storage, layout) = t.candle()?.storage_and_layout();
        let Storage::Metal(metal) = &*storage else {
            return Err(Error::call("metal kernel", "the tensor is not on a Metal device"));
        };
        Ok(View {
            buffer: metal.buffer().clone(),
            offset: layout.start_offset() * t.dtype().size(),
            device: metal.device().clone(),
            dims: layout.dims().to_vec(),
            strides: layout.stride().to_vec(),
            dtype: t.dtype(),
        })
    }

    /// Without gaps, or an error that says so.
    pub(crate) fn whole(t: &Tensor) -> Result<View> {
        let view = View::of(t)?;
        if view.is_whole() { Ok(view) } else { Err(view.unfit("elements without gaps")) }
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// The last axis as columns, all others as rows.
    pub(crate) fn rows(&self) -> Result<Rows> {
        let cols = *self.dims.last().unwrap_or(&1);
        let rows = self.dims[..self.dims.len().saturating_sub(1)].iter().product();
        match *self.strides {
            _ if self.is_whole() => Ok(Rows { rows, cols, stride: cols }),
            [stride, 1] => Ok(Rows { rows, cols, stride }),
            _ => Err(self.unfit("rows")),
        }
    }

    /// `[tokens, heads, size]`, which may be a part of a wider projection; what has fewer axes is one head, or one token.
    pub(crate) fn lines(&self) -> Result<Lines> {
        match (&*self.dims, &*self.strides) {
            (&[tokens, heads, size], &[token, head, 1]) => Ok(Lines { tokens, heads, size, token, head }),
            _ => {
                let Rows { rows, cols, stride } = self.rows()?;
                Ok(Lines { tokens: rows, heads: 1, size: cols, token: stride, head: 0 })
            }
        }
    }

    /// Whether every row begins where four elements may be read at once, and holds whole fours.
    pub(crate) fn in_fours(&self) -> Result<bool> {
        let Rows { rows, cols, stride } = self.rows()?;
        let apart = rows <= 1 || stride.is_multiple_of(4);
        Ok(cols.is_multiple_of(4) && apart && self.offset.is_multiple_of(4 * self.dtype.size()))
    }

    fn is_whole(&self) -> bool {
        let mut expected = 1;
        self.dims.iter().zip(&self.strides).rev().all(|(dim, stride)| {
            let fits = *dim == 1 || *stride == expected;
            expected *= dim;
            fits
        })
    }

    fn unfit(&self, what: &str) -> Error {
        Error::call("metal kernel", format!("{what} of a view {:?} with strides {:?}", self.dims, self.strides))
    }
}
