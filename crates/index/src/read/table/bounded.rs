//! A reader that refuses rows beyond a length, whoever splits its bytes into rows.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// The bytes that may still be read for the current row.
#[derive(Clone)]
pub(super) struct Allowance {
    left: Rc<Cell<u64>>,
    per_row: u64,
}

impl Allowance {
    pub(super) fn new(per_row: u64) -> Self {
        Self { left: Rc::new(Cell::new(per_row)), per_row }
    }

    /// A row ended.
    pub(super) fn renew(&self) {
        self.left.set(self.per_row);
    }
}

/// A reader with an allowance.
pub(super) struct Bounded<R> {
    inner: R,
    allowance: Allowance,
}

impl<R> Bounded<R> {
    pub(super) fn new(inner: R, allowance: Allowance) -> Self {
        Self { inner, allowance }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.allowance.left.get();
        let most = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if most == 0 && !buf.is_empty() {
            let why = format!("a row is longer than {} bytes", self.allowance.per_row);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let count = self.inner.read(&mut buf[..most])?;
        self.allowance.left.set(left - count as u64);
        Ok(count)
    }
}
