//! Views of a CPU tensor as rows of elements, without a copy if its layout allows; and results that
//! tasks fill in parallel.
#![allow(unsafe_code, reason = "tasks write disjoint parts of one result")]

use super::elem::Elem;
use super::team;
use crate::buffer_pool::PooledBuffer;
use crate::tensor::room;
use crate::{Error, Result, Tensor};
use candle_core::{CpuStorage, Layout, Storage, StorageRef};
use std::cell::RefCell;

/// Read access to a tensor's storage.
pub(crate) struct Reading<'a> {
    storage: StorageRef<'a>,
    layout: &'a Layout,
}

/// Rows of `cols` elements whose starts are `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
}

impl<'a> Reading<'a> {
    pub(crate) fn of(t: &'a Tensor) -> Result<Self> {
        let (storage, layout) = t.candle()?.storage_and_layout();
        Ok(Reading { storage, layout })
    }

    /// The format of the elements.
    pub(crate) fn dtype(&self) -> Result<crate::DType> {
        match self.cpu()? {
            CpuStorage::F32(_) => Ok(crate::DType::F32),
            CpuStorage::BF16(_) => Ok(crate::DType::BF16),
            CpuStorage::F16(_) => Ok(crate::DType::F16),
            CpuStorage::U32(_) => Ok(crate::DType::U32),
            CpuStorage::U8(_) => Ok(crate::DType::U8),
            _ => Err(Error::call("cpu kernel", "the tensor has an unsupported dtype")),
        }
    }

    /// The elements of a contiguous tensor.
    pub(crate) fn slice<T: candle_core::WithDType>(&self) -> Result<&[T]> {
        match self.layout.contiguous_offsets() {
            Some((start, end)) => Ok(&self.cpu()?.as_slice::<T>()?[start..end]),
            None => Err(Error::call(
                "cpu kernel",
                format!("needs a contiguous tensor, not a view with strides {:?}", self.layout.stride()),
            )),
        }
    }

    /// The storage from the tensor's first element on, to be indexed with [`Reading::strides`].
    pub(crate) fn onwards<T: candle_core::WithDType>(&self) -> Result<&[T]> {
        Ok(&self.cpu()?.as_slice::<T>()?[self.layout.start_offset()..])
    }

    /// The tensor as a matrix: the last axis as columns, all others as rows.
    pub(crate) fn rows<T: Elem>(&self) -> Result<Rows<'_, T>> {
        let dims = self.layout.dims();
        let cols = *dims.last().unwrap_or(&1);
        let rows = dims[..dims.len().saturating_sub(1)].iter().product();
        let strides = self.layout.stride();
        let stride = match strides {
            _ if self.layout.is_contiguous() => cols,
            [stride, 1] => *stride,
            _ => {
                return Err(Error::call(
                    "cpu kernel",
                    format!("needs rows of consecutive elements, not a view with strides {strides:?}"),
                ));
            }
        };
        Ok(Rows { data: self.onwards()?, rows, cols, stride })
    }

    /// The tensor as a matrix, like [`Reading::rows`]; the rows may also be the heads of `[tokens,
    /// heads, size]` within a wider projection.
    pub(crate) fn lines<T: Elem>(&self) -> Result<Lines<'_, T>> {
        match (self.layout.dims(), self.layout.stride()) {
            ([tokens, heads, size], [token, head, 1]) if !self.layout.is_contiguous() => Ok(Lines {
                data: self.onwards()?,
                rows: tokens * heads,
                cols: *size,
                heads: *heads,
                token: *token,
                head: *head,
            }),
            _ => {
                let Rows { data, rows, cols, stride } = self.rows()?;
                Ok(Lines { data, rows, cols, heads: 1, token: stride, head: 0 })
            }
        }
    }

    /// Element strides of each axis.
    pub(crate) fn strides(&self) -> &[usize] {
        self.layout.stride()
    }

    fn cpu(&self) -> Result<&CpuStorage> {
        match &*self.storage {
            Storage::Cpu(cpu) => Ok(cpu),
            _ => Err(Error::call("cpu kernel", "the tensor is not on the CPU")),
        }
    }
}

/// Rows of `cols` elements: `heads` rows per token, `head` elements apart, and tokens `token`
/// elements apart.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a, T> {
    data: &'a [T],
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    heads: usize,
    token: usize,
    head: usize,
}

impl<'a, T: Elem> Lines<'a, T> {
    pub(crate) fn row(&self, i: usize) -> &'a [T] {
        &self.data[i / self.heads * self.token + i % self.heads * self.head..][..self.cols]
    }
}

impl<'a, T: Copy> Rows<'a, T> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a [T]> + use<'a, T> {
        let rows = *self;
        (0..rows.rows).map(move |i| rows.row(i))
    }

    pub(crate) fn row(&self, i: usize) -> &'a [T] {
        &self.data[i * self.stride..][..self.cols]
    }
}

/// A result that several tasks fill, each its own disjoint part.
pub(crate) struct Output<T> {
    values: *mut T,
    len: usize,
}
// SAFETY: `part` is the only access, and its callers take disjoint parts.
unsafe impl<T: Send> Sync for Output<T> {}

impl<T> Output<T> {
    /// Wraps `values`, which must outlive every task.
    pub(crate) fn over(values: &mut [T]) -> Self {
        Output { values: values.as_mut_ptr(), len: values.len() }
    }

    /// Casts the output if its elements are bf16.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only AMX uses it"))]
    pub(crate) fn as_bf16(&self) -> Option<&Output<half::bf16>>
    where
        T: Elem,
    {
        // SAFETY: only bf16 has `TYPE` BF16, so both types are the same.
        (T::TYPE == crate::DType::BF16).then(|| unsafe { &*std::ptr::from_ref(self).cast() })
    }

    /// Pointer to element `at`. Writes must obey the contract of [`Output::part`].
    #[inline(always)]
    pub(crate) fn at(&self, at: usize) -> *mut T {
        debug_assert!(at < self.len, "{at} of {}", self.len);
        self.values.wrapping_add(at)
    }

    /// `len` elements from `at` on.
    ///
    /// # Safety
    /// They must lie inside the values, and no other task may access any of them.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "the caller guarantees that the parts are disjoint")]
    pub(crate) unsafe fn part(&self, at: usize, len: usize) -> &mut [T] {
        debug_assert!(at + len <= self.len, "{at} + {len} of {}", self.len);
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.values.add(at), len) }
    }
}

/// Makes a `rows` × `cols` result by filling its rows in parallel. A row's initial values are
/// unspecified. Each call gets `scratch` f32s.
pub(crate) fn fill_rows<T: Elem>(
    rows: usize,
    cols: usize,
    scratch: usize,
    fill: impl Fn(usize, &mut [T], &mut [f32]) + Sync,
) -> PooledBuffer<T> {
    let mut out = room::<T>(rows * cols);
    if cols == 0 {
        return out;
    }
    // Enough work per task to pay for its dispatch: a few thousand elements, and no more tasks than
    // balance the threads.
    let chunk = (4096 / cols).max(rows.div_ceil(8 * crate::threads::count())).max(1);
    let result = Output::over(&mut out);
    team::each(rows.div_ceil(chunk), |task| {
        SCRATCH.with_borrow_mut(|buffer| {
            buffer.resize(buffer.len().max(scratch), 0.0);
            for row in task * chunk..rows.min((task + 1) * chunk) {
                // SAFETY: the row lies in the result and belongs to this task.
                fill(row, unsafe { result.part(row * cols, cols) }, &mut buffer[..scratch]);
            }
        });
    });
    out
}

thread_local! {
    /// Scratch memory that each worker reuses from call to call.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}
