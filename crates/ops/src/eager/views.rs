//! Views: other shapes and parts of the same elements. They compute nothing and are not counted.

use super::{Array, byte_count};
use crate::{Error, Result};

impl Array {
    /// The same elements in another shape. A view with gaps is copied first, which is counted.
    pub fn reshape(&self, dims: &[usize]) -> Result<Array> {
        if byte_count("reshape", dims, self.dtype)? != byte_count("reshape", self.dims(), self.dtype)? {
            let what = format!("{:?} does not hold as many elements as {dims:?}", self.dims());
            return Err(Error::call("reshape", what));
        }
        let whole = self.contiguous()?;
        Ok(whole.view(whole.candle.reshape(dims)?))
    }

    /// Repeats axes of length 1, and adds first axes, to this shape.
    pub fn broadcast_as(&self, dims: &[usize]) -> Result<Array> {
        byte_count("broadcast_as", dims, self.dtype)?;
        Ok(self.view(self.candle.broadcast_as(dims)?))
    }

    /// Adds these axes before the others.
    pub fn broadcast_left(&self, dims: &[usize]) -> Result<Array> {
        self.broadcast_as(&[dims, self.dims()].concat())
    }

    /// Removes an axis of length 1; others stay.
    pub fn squeeze(&self, axis: usize) -> Result<Array> {
        self.axis("squeeze", axis)?;
        Ok(self.view(self.candle.squeeze(axis)?))
    }

    /// Adds an axis of length 1.
    pub fn unsqueeze(&self, axis: usize) -> Result<Array> {
        if axis > self.dims().len() {
            return Err(Error::call("unsqueeze", format!("{:?} has no place for axis {axis}", self.dims())));
        }
        Ok(self.view(self.candle.unsqueeze(axis)?))
    }

    /// Entry `index` of the first axis.
    pub fn get(&self, index: usize) -> Result<Array> {
        self.narrow(0, index, 1)?.squeeze(0)
    }

    /// Swaps two axes.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Array> {
        self.axis("transpose", a)?;
        self.axis("transpose", b)?;
        Ok(self.view(self.candle.transpose(a, b)?))
    }

    /// Swaps the last two axes.
    pub fn t(&self) -> Result<Array> {
        match self.dims().len() {
            n @ 2.. => self.transpose(n - 2, n - 1),
            _ => Err(Error::call("t", format!("{:?} has less than two axes", self.dims()))),
        }
    }

    /// `len` entries of an axis, from `start` on.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<Array> {
        let most = self.axis("narrow", axis)?;
        if start.checked_add(len).is_none_or(|end| end > most) {
            let what = format!("no {len} entries from {start} on axis {axis} of {:?}", self.dims());
            return Err(Error::call("narrow", what));
        }
        Ok(self.view(self.candle.narrow(axis, start, len)?))
    }

    /// Joins the axes from `first` to `last`.
    pub fn flatten(&self, first: usize, last: usize) -> Result<Array> {
        let dims = self.dims();
        if dims.is_empty() || first > last || last >= dims.len() {
            return Err(Error::call("flatten", format!("{dims:?} has no axes {first} to {last}")));
        }
        let joined = dims[first..=last].iter().product();
        self.reshape(&[&dims[..first], &[joined], &dims[last + 1..]].concat())
    }

    /// Whether the elements are in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.candle.is_contiguous()
    }

    /// Whether the elements are in column-major order without gaps.
    pub fn is_fortran_contiguous(&self) -> bool {
        self.candle.is_fortran_contiguous()
    }
}
