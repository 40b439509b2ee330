//! Shapes and strides of a tensor in GPU memory, in the form that kernels take.

use crate::{DType, Error, Result};

/// Shape, and strides in elements.
#[derive(Clone, Debug)]
pub(crate) struct Strided {
    pub(crate) dims: Vec<usize>,
    pub(crate) strides: Vec<usize>,
    /// Offset of the first element, in elements.
    pub(crate) start: usize,
    pub(crate) dtype: DType,
}

/// Rows of `cols` elements that begin `stride` elements apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
}

/// Vectors of `size` elements: `heads` of them per token, `head` elements apart, and tokens `token`
/// elements apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lines {
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) size: usize,
    pub(crate) token: usize,
    pub(crate) head: usize,
}

impl Strided {
    pub(crate) fn of(layout: &candle_core::Layout, dtype: DType) -> Strided {
        let (dims, strides) = (layout.dims().to_vec(), layout.stride().to_vec());
        Strided { dims, strides, start: layout.start_offset(), dtype }
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

    /// `[tokens, heads, size]`, which may be a part of a wider projection. A tensor with fewer axes
    /// has one head, or one token.
    pub(crate) fn lines(&self) -> Result<Lines> {
        match (&*self.dims, &*self.strides) {
            (&[tokens, heads, size], &[token, head, 1]) => Ok(Lines { tokens, heads, size, token, head }),
            _ => {
                let Rows { rows, cols, stride } = self.rows()?;
                Ok(Lines { tokens: rows, heads: 1, size: cols, token: stride, head: 0 })
            }
        }
    }

    /// The lines of this tensor and of its residual, which has as many heads; without a residual,
    /// its own twice.
    pub(crate) fn lines_with(&self, op: &'static str, residual: Option<&Strided>) -> Result<[Lines; 2]> {
        let lines = self.lines()?;
        let added = residual.map_or(Ok(lines), Strided::lines)?;
        if added.heads != lines.heads {
            return Err(Error::call(op, format!("a residual with {} heads for {}", added.heads, lines.heads)));
        }
        Ok([lines, added])
    }

    /// The same for a tensor that has these three axes and contiguous vectors: a head must not be
    /// read as another token.
    pub(crate) fn vectors(&self) -> Result<Lines> {
        let lines = self.lines()?;
        let fits = [lines.tokens, lines.heads, lines.size] == *self.dims;
        if fits { Ok(lines) } else { Err(self.unfit("vectors")) }
    }

    /// Whether every row begins at a multiple of `n` elements and consists of whole runs of `n`, so
    /// that `n` can be read at once.
    pub(crate) fn in_runs(&self, n: usize) -> Result<bool> {
        let Rows { rows, cols, stride } = self.rows()?;
        let apart = rows <= 1 || stride.is_multiple_of(n);
        Ok(cols.is_multiple_of(n) && apart && self.start.is_multiple_of(n))
    }

    /// The same for runs of four.
    pub(crate) fn in_fours(&self) -> Result<bool> {
        self.in_runs(4)
    }

    /// Whether it is contiguous.
    pub(crate) fn is_whole(&self) -> bool {
        let mut expected = 1;
        self.dims.iter().zip(&self.strides).rev().all(|(dim, stride)| {
            let fits = *dim == 1 || *stride == expected;
            expected *= dim;
            fits
        })
    }

    pub(crate) fn unfit(&self, what: &str) -> Error {
        Error::call("kernel", format!("{what} of a view {:?} with strides {:?}", self.dims, self.strides))
    }
}
