//! The buffer pool of CPU results. A forward pass that reuses buffers takes no memory from the
//! system: the page faults of fresh memory can cost more than the op that fills it.
//!
//! To stay within the memory plan together with all live tensors, the pool frees idle buffers of
//! the same element type before it takes a buffer from the system, until the new one fits. A result
//! takes the smallest buffer that is large enough, however much larger that is, so that after the
//! largest batch no smaller batch needs another buffer.

use crate::cpu::elem::Elem;
use crate::cpu::gemm::LINE;
use crate::launch::cuda;
use crate::ledger::Ledger;
use candle_core::{CpuStorage, InplaceOp1, Layout, WithDType};
use half::vec::HalfBitsVecExt;
use half::{bf16, f16};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Results smaller than this are allocated: looking up a buffer would take longer.
const MIN_BYTES: usize = 16 << 10;

/// Most idle buffers of each element type.
const MAX_BUFFERS: usize = 24;

/// The idle buffers of one ladder. Their contents are undefined.
#[derive(Debug)]
pub(crate) struct BufferPool {
    f32s: Mutex<Vec<Vec<f32>>>,
    bf16s: Mutex<Vec<Vec<bf16>>>,
    f16s: Mutex<Vec<Vec<f16>>>,
    /// Bytes of the idle buffers, and the unused ends of buffers that results hold.
    idle: AtomicU64,
    /// Most bytes of the pool and all live tensors together.
    limit: AtomicU64,
}

impl Default for BufferPool {
    fn default() -> BufferPool {
        let (f32s, bf16s, f16s) = Default::default();
        BufferPool { f32s, bf16s, f16s, idle: AtomicU64::new(0), limit: AtomicU64::new(u64::MAX) }
    }
}

/// An element type whose buffers are pooled.
pub(crate) trait Pooled: Sized {
    fn buffers(pool: &BufferPool) -> &Mutex<Vec<Vec<Self>>>;
    /// Zeroed memory fresh from the system.
    fn zeros(len: usize) -> Vec<Self>;
}

macro_rules! pooled {
    ($($type:ty: $buffers:ident, $zeros:expr;)*) => {
        $(impl Pooled for $type {
            fn buffers(pool: &BufferPool) -> &Mutex<Vec<Vec<$type>>> {
                &pool.$buffers
            }
            fn zeros(len: usize) -> Vec<$type> {
                $zeros(len)
            }
        })*
    };
}

pooled! {
    f32: f32s, |len| vec![0f32; len];
    bf16: bf16s, |len| vec![0u16; len].reinterpret_into::<bf16>();
    f16: f16s, |len| vec![0u16; len].reinterpret_into::<f16>();
}

/// A result buffer that becomes a tensor. Its first element is aligned to a cache line: kernels
/// read and write whole lines, and an access across two of them costs twice.
pub(crate) struct PooledBuffer<T> {
    buffer: Vec<T>,
    first: usize,
    len: usize,
    /// The pool that takes the buffer back unless it becomes a tensor, and the function that does
    /// so.
    pool: Option<(Arc<Ledger>, PutBack<T>)>,
}

type PutBack<T> = fn(&Ledger, Vec<T>, usize);

impl<T: Elem> PooledBuffer<T> {
    /// `len` elements with undefined contents.
    pub(crate) fn new(ledger: &Arc<Ledger>, len: usize) -> PooledBuffer<T> {
        let buffer = take::<T>(ledger, len + LINE / size_of::<T>());
        let pool = Some((ledger.clone(), put_back::<T> as PutBack<T>));
        PooledBuffer { first: buffer.as_ptr().align_offset(LINE), len, buffer, pool }
    }
}

impl<T> From<Vec<T>> for PooledBuffer<T> {
    fn from(buffer: Vec<T>) -> PooledBuffer<T> {
        PooledBuffer { len: buffer.len(), first: 0, buffer, pool: None }
    }
}

impl<T> Deref for PooledBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.buffer[self.first..][..self.len]
    }
}

impl<T> DerefMut for PooledBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.buffer[self.first..][..self.len]
    }
}

impl<T> Drop for PooledBuffer<T> {
    fn drop(&mut self) {
        if let Some((ledger, put_back)) = self.pool.take() {
            put_back(&ledger, std::mem::take(&mut self.buffer), self.len);
        }
    }
}

impl<T: WithDType> PooledBuffer<T> {
    /// Turns the buffer into a tensor that owns it.
    pub(crate) fn tensor(mut self, dims: &[usize]) -> candle_core::Result<candle_core::Tensor> {
        self.pool = None;
        let (buffer, first, len) = (std::mem::take(&mut self.buffer), self.first, self.len);
        let all = buffer.len();
        if all == len {
            return candle_core::Tensor::from_vec(buffer, dims, &candle_core::Device::Cpu);
        }
        candle_core::Tensor::from_vec(buffer, all, &candle_core::Device::Cpu)?.narrow(0, first, len)?.reshape(dims)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes<T>(elements: usize) -> u64 {
    elements.saturating_mul(size_of::<T>()) as u64
}

/// A buffer of `len` elements or more.
fn take<T: Elem>(ledger: &Ledger, len: usize) -> Vec<T> {
    let pool = &ledger.pool;
    if bytes::<T>(len) < MIN_BYTES as u64 {
        return T::zeros(len);
    }
    let mut idle = lock(T::buffers(pool));
    let best = (0..idle.len()).filter(|i| idle[*i].len() >= len).min_by_key(|i| idle[*i].len());
    if let Some(best) = best {
        let found = idle.swap_remove(best);
        // The part of the buffer beyond `len` stays counted as idle.
        pool.idle.fetch_sub(bytes::<T>(len), Relaxed);
        return found;
    }
    // No idle buffer is large enough. Freeing the largest makes most room, and the small ones are
    // the likeliest to be reused.
    while ledger.live().saturating_add(pool.idle.load(Relaxed)).saturating_add(bytes::<T>(len))
        > pool.limit.load(Relaxed)
    {
        let Some(largest) = (0..idle.len()).max_by_key(|i| idle[*i].len()) else { break };
        pool.idle.fetch_sub(bytes::<T>(idle.swap_remove(largest).len()), Relaxed);
    }
    T::zeros(len)
}

/// Returns a buffer to the pool. Its result had `len` elements, plus the padding for alignment.
fn put_back<T: Elem>(ledger: &Ledger, buffer: Vec<T>, len: usize) {
    let (pool, taken) = (&ledger.pool, len + LINE / size_of::<T>());
    if bytes::<T>(taken) < MIN_BYTES as u64 || buffer.len() < taken {
        return;
    }
    let mut idle = lock(T::buffers(pool));
    pool.idle.fetch_add(bytes::<T>(taken), Relaxed);
    idle.push(buffer);
    if idle.len() > MAX_BUFFERS {
        pool.idle.fetch_sub(bytes::<T>(idle.remove(0).len()), Relaxed);
    }
}

impl BufferPool {
    /// Limits the bytes of the pool and all live tensors together.
    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Relaxed);
    }

    /// Most bytes of the pool and all live tensors together.
    #[cfg_attr(not(metal), allow(dead_code, reason = "for the device that this build lacks"))]
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Bytes counted as idle.
    #[cfg(test)]
    fn idle(&self) -> u64 {
        self.idle.load(Relaxed)
    }
}

impl Ledger {
    /// Moves the buffer of a dropped tensor into the pool and leaves the tensor empty. If
    /// `is_shared`, another tensor may still read the buffer: then it stays there, and only its
    /// unused end is no longer counted as idle.
    pub(crate) fn reclaim(&self, tensor: &candle_core::Tensor, is_shared: bool) {
        if let Some(address) = cuda::buffers::address_of(tensor) {
            return self.cuda.put_back(address, is_shared);
        }
        let _ = tensor.inplace_op1(&Reclaim { ledger: self, is_shared });
    }
}

struct Reclaim<'a> {
    ledger: &'a Ledger,
    is_shared: bool,
}

impl Reclaim<'_> {
    fn end<T: Elem>(&self, buffer: &mut Vec<T>, len: usize) {
        if !self.is_shared {
            return put_back(self.ledger, std::mem::take(buffer), len);
        }
        let unused = buffer.len().saturating_sub(len + LINE / size_of::<T>());
        self.ledger.pool.idle.fetch_sub(bytes::<T>(unused), Relaxed);
    }
}

impl InplaceOp1 for Reclaim<'_> {
    fn name(&self) -> &'static str {
        "reclaim"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let len = layout.shape().elem_count();
        match storage {
            CpuStorage::F32(v) => self.end(v, len),
            CpuStorage::BF16(v) => self.end(v, len),
            CpuStorage::F16(v) => self.end(v, len),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::PooledBuffer;
    use crate::{DType, Ladder, Place, Policy, Rung, Tensor, softmax};
    use std::sync::Arc;

    fn ones(rows: usize) -> Tensor {
        Tensor::from_f32(&vec![1.0; rows * 256], &[rows, 256], DType::F32, &Place::cpu()).unwrap()
    }

    fn results(ladder: &Arc<Ladder>, x: &Tensor) -> (usize, Vec<f32>) {
        let _here = ladder.clone().enter();
        let y = softmax(x).unwrap();
        (address(&y), y.to_f32().unwrap())
    }

    fn address(y: &Tensor) -> usize {
        let at = y.candle().unwrap().storage_and_layout().0;
        let candle_core::Storage::Cpu(candle_core::CpuStorage::F32(v)) = &*at else { panic!("f32 on the CPU") };
        v.as_ptr().addr()
    }

    #[test]
    fn freed_buffers_are_reused() {
        let ladder = Ladder::new(Policy::default());
        let x = ones(64);
        let (first, y) = results(&ladder, &x);
        let smaller = x.narrow(0, 0, 20).unwrap();
        let (second, z) = results(&ladder, &smaller);
        assert_eq!((first, y[0]), (second, z[0]));
        // A buffer in use is not taken, and neither is one with a view in use.
        let _here = ladder.clone().enter();
        let view = softmax(&x).unwrap().narrow(0, 3, 1).unwrap();
        let before = view.to_f32().unwrap();
        let (third, _) = results(&ladder, &ones(64));
        assert_ne!(first, third);
        assert_eq!(view.to_f32().unwrap(), before);
    }

    #[test]
    fn live_results_never_share_a_buffer() {
        let ladder = Ladder::new(Policy::default());
        let _here = ladder.clone().enter();
        for rows in [64, 100, 64, 80] {
            let x = ones(rows);
            let all: Vec<Tensor> = (0..4).map(|_| softmax(&x).unwrap()).collect();
            let mut at: Vec<_> = all.iter().map(address).collect();
            at.sort_unstable();
            at.dedup();
            assert_eq!(at.len(), 4);
        }
    }

    #[test]
    fn dropped_buffer_returns_to_the_pool() {
        let ladder = Ladder::new(Policy::default());
        let first = PooledBuffer::<f32>::new(&ladder.ledger, 1 << 14).as_ptr();
        let second = PooledBuffer::<f32>::new(&ladder.ledger, 1 << 14);
        assert_eq!((first, second.len()), (second.as_ptr(), 1 << 14));
        assert_eq!(first.align_offset(64), 0);
    }

    #[test]
    fn pool_stays_within_the_planned_bytes() {
        let ladder = Ladder::new(Policy::default());
        let _here = ladder.clone().enter();
        let of = |rows: usize| (rows * 256 * 4) as u64;
        // For an input and two results of 100 rows, each with padding for alignment.
        let most = 3 * of(100) + 128;
        ladder.ledger.hold(most);
        let in_use = || ladder.ledger.live() + ladder.ledger.pool.idle();
        for rows in [20, 60, 100, 30, 100, 70, 100] {
            let x = ones(rows);
            let (a, b) = (softmax(&x).unwrap(), softmax(&x).unwrap());
            assert!(in_use() <= most + 128, "{} of {most} after {rows} rows", in_use());
            drop((a, b));
            assert!(in_use() <= most + 128, "{} of {most} after dropping {rows} rows", in_use());
        }
        // The largest buffers are in the pool, and the next results of that size allocate nothing.
        let idle = ladder.ledger.pool.idle();
        assert!(idle >= 2 * of(100), "{idle}");
        let x = ones(100);
        drop((softmax(&x).unwrap(), softmax(&x).unwrap()));
        assert_eq!(ladder.ledger.pool.idle(), idle);
    }

    #[test]
    fn buffer_with_a_candle_view_is_not_reused() {
        let composed = Ladder::new(Policy { force: Some(Rung::Composed), ..Policy::default() });
        let fused = Ladder::new(Policy::default());
        let x = ones(64);
        let entered = fused.clone().enter();
        let y = softmax(&x).unwrap();
        drop(entered);
        let entered = composed.clone().enter();
        let _z = softmax(&y).unwrap();
        drop(entered);
        // As with a composed form whose result is a view of its input: the view holds the buffer,
        // but no lease.
        let (view, want) = (y.candle().unwrap().clone(), y.to_f32().unwrap());
        drop(y);
        let twos = Tensor::from_f32(&vec![2.0; 64 * 256], &[64, 256], DType::F32, &Place::cpu()).unwrap();
        let _ = results(&fused, &twos);
        assert_eq!(view.flatten_all().unwrap().to_vec1::<f32>().unwrap(), want);
    }
}
