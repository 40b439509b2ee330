//! Buffers of results that are gone, for those to come: a forward pass then takes no memory from the system, whose fresh pages
//! cost more than many an op that fills them.
//!
//! What is kept, whether a result is in it or not, stays within what was planned for results that are alive: before a buffer is
//! taken from the system, those are given back that would not fit beside it. A result takes the smallest buffer that holds it,
//! however much larger that is, so that after the largest batch no smaller one needs another.

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

/// Results below this come and go faster than they could be looked up here.
const LEAST: usize = 16 << 10;

/// How many of a type are kept by a ladder that nothing was planned for.
const MOST: usize = 24;

/// The spare buffers of one ladder. Their contents are whatever was in them.
#[derive(Debug)]
pub(crate) struct BufferPool {
    f32s: Mutex<Vec<Vec<f32>>>,
    bf16s: Mutex<Vec<Vec<bf16>>>,
    f16s: Mutex<Vec<Vec<f16>>>,
    /// Bytes of these, and what results leave of theirs.
    idle: AtomicU64,
    /// Bytes that may be held in all.
    most: AtomicU64,
}

impl Default for BufferPool {
    fn default() -> BufferPool {
        let (f32s, bf16s, f16s) = Default::default();
        BufferPool { f32s, bf16s, f16s, idle: AtomicU64::new(0), most: AtomicU64::new(u64::MAX) }
    }
}

/// An element whose buffers are kept.
pub(crate) trait Pooled: Sized {
    fn spare(of: &BufferPool) -> &Mutex<Vec<Vec<Self>>>;
    /// Zeros that the system has given, and nobody has written.
    fn zeros(len: usize) -> Vec<Self>;
}

macro_rules! kept {
    ($($type:ty: $spare:ident, $zeros:expr;)*) => {
        $(impl Pooled for $type {
            fn spare(of: &BufferPool) -> &Mutex<Vec<Vec<$type>>> {
                &of.$spare
            }
            fn zeros(len: usize) -> Vec<$type> {
                $zeros(len)
            }
        })*
    };
}

kept! {
    f32: f32s, |len| vec![0f32; len];
    bf16: bf16s, |len| vec![0u16; len].reinterpret_into::<bf16>();
    f16: f16s, |len| vec![0u16; len].reinterpret_into::<f16>();
}

/// Elements that become a tensor, the first of them at the beginning of a line of the cache: kernels read and write lines, and
/// what lies across two of them costs twice.
pub(crate) struct PooledBuffer<T> {
    buffer: Vec<T>,
    first: usize,
    len: usize,
    /// Who keeps the buffer when no tensor has come of it, and how.
    home: Option<(Arc<Ledger>, Give<T>)>,
}

type Give<T> = fn(&Ledger, Vec<T>, usize);

impl<T: Elem> PooledBuffer<T> {
    /// `len` elements of no meaning.
    pub(crate) fn new(ledger: &Arc<Ledger>, len: usize) -> PooledBuffer<T> {
        let buffer = take::<T>(ledger, len + LINE / size_of::<T>());
        let home = Some((ledger.clone(), give::<T> as Give<T>));
        PooledBuffer { first: buffer.as_ptr().align_offset(LINE), len, buffer, home }
    }
}

impl<T> From<Vec<T>> for PooledBuffer<T> {
    fn from(buffer: Vec<T>) -> PooledBuffer<T> {
        PooledBuffer { len: buffer.len(), first: 0, buffer, home: None }
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
        if let Some((ledger, give)) = self.home.take() {
            give(&ledger, std::mem::take(&mut self.buffer), self.len);
        }
    }
}

impl<T: WithDType> PooledBuffer<T> {
    /// As a tensor that takes the buffer over.
    pub(crate) fn tensor(mut self, dims: &[usize]) -> candle_core::Result<candle_core::Tensor> {
        self.home = None;
        let (buffer, first, len) = (std::mem::take(&mut self.buffer), self.first, self.len);
        let all = buffer.len();
        if all == len {
            return candle_core::Tensor::from_vec(buffer, dims, &candle_core::Device::Cpu);
        }
        candle_core::Tensor::from_vec(buffer, all, &candle_core::Device::Cpu)?.narrow(0, first, len)?.reshape(dims)
    }
}

fn lock<T>(spare: &Mutex<T>) -> MutexGuard<'_, T> {
    spare.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes<T>(elements: usize) -> u64 {
    elements.saturating_mul(size_of::<T>()) as u64
}

/// A buffer of `len` elements or more.
fn take<T: Elem>(ledger: &Ledger, len: usize) -> Vec<T> {
    let spare = &ledger.spare;
    if bytes::<T>(len) < LEAST as u64 {
        return T::zeros(len);
    }
    let mut kept = lock(T::spare(spare));
    let best = (0..kept.len()).filter(|i| kept[*i].len() >= len).min_by_key(|i| kept[*i].len());
    if let Some(best) = best {
        let found = kept.swap_remove(best);
        // What the result leaves of it stays idle.
        spare.idle.fetch_sub(bytes::<T>(len), Relaxed);
        return found;
    }
    // None of them is large enough; the largest make most room, and the small ones are the likeliest to be of use again.
    while ledger.live().saturating_add(spare.idle.load(Relaxed)).saturating_add(bytes::<T>(len))
        > spare.most.load(Relaxed)
    {
        let Some(largest) = (0..kept.len()).max_by_key(|i| kept[*i].len()) else { break };
        spare.idle.fetch_sub(bytes::<T>(kept.swap_remove(largest).len()), Relaxed);
    }
    T::zeros(len)
}

/// Keeps a buffer of which a result had `len` elements and room to begin with a line.
fn give<T: Elem>(ledger: &Ledger, buffer: Vec<T>, len: usize) {
    let (spare, taken) = (&ledger.spare, len + LINE / size_of::<T>());
    if bytes::<T>(taken) < LEAST as u64 || buffer.len() < taken {
        return;
    }
    let mut kept = lock(T::spare(spare));
    spare.idle.fetch_add(bytes::<T>(taken), Relaxed);
    kept.push(buffer);
    if kept.len() > MOST {
        spare.idle.fetch_sub(bytes::<T>(kept.remove(0).len()), Relaxed);
    }
}

impl BufferPool {
    /// From now on no more than so many bytes are held, by all tensors and for those to come.
    pub(crate) fn hold(&self, most: u64) {
        self.most.store(most, Relaxed);
    }

    /// Bytes that may be held in all.
    #[cfg_attr(not(metal), allow(dead_code, reason = "for the device that this build lacks"))]
    pub(crate) fn most(&self) -> u64 {
        self.most.load(Relaxed)
    }

    /// Bytes that are held and in which nothing is.
    #[cfg(test)]
    fn idle(&self) -> u64 {
        self.idle.load(Relaxed)
    }
}

impl Ledger {
    /// Keeps the buffer of a tensor that nobody reads any more, which is left empty; where somebody may, `is_shared`, only what it
    /// left idle is counted off.
    pub(crate) fn reclaim(&self, tensor: &candle_core::Tensor, is_shared: bool) {
        if let Some(address) = cuda::buffers::address_of(tensor) {
            return self.cuda.give(address, is_shared);
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
            return give(self.ledger, std::mem::take(buffer), len);
        }
        let left = buffer.len().saturating_sub(len + LINE / size_of::<T>());
        self.ledger.spare.idle.fetch_sub(bytes::<T>(left), Relaxed);
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
    fn a_result_takes_the_buffer_of_one_that_is_gone() {
        let ladder = Ladder::new(Policy::default());
        let x = ones(64);
        let (first, y) = results(&ladder, &x);
        let smaller = x.narrow(0, 0, 20).unwrap();
        let (second, z) = results(&ladder, &smaller);
        assert_eq!((first, y[0]), (second, z[0]));
        // One that is still held is not taken, nor one with a view that is.
        let _here = ladder.clone().enter();
        let held = softmax(&x).unwrap().narrow(0, 3, 1).unwrap();
        let before = held.to_f32().unwrap();
        let (third, _) = results(&ladder, &ones(64));
        assert_ne!(first, third);
        assert_eq!(held.to_f32().unwrap(), before);
    }

    #[test]
    fn no_two_results_alive_share_a_buffer() {
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
    fn what_becomes_no_tensor_is_given_back() {
        let ladder = Ladder::new(Policy::default());
        let first = PooledBuffer::<f32>::new(&ladder.ledger, 1 << 14).as_ptr();
        let second = PooledBuffer::<f32>::new(&ladder.ledger, 1 << 14);
        assert_eq!((first, second.len()), (second.as_ptr(), 1 << 14));
        assert_eq!(first.align_offset(64), 0);
    }

    #[test]
    fn no_more_is_held_than_was_planned() {
        let ladder = Ladder::new(Policy::default());
        let _here = ladder.clone().enter();
        let of = |rows: usize| (rows * 256 * 4) as u64;
        // Room for an input and two results of 100 rows, each with room to begin with a line.
        let most = 3 * of(100) + 128;
        ladder.ledger.hold(most);
        let held = || ladder.ledger.live() + ladder.ledger.spare.idle();
        for rows in [20, 60, 100, 30, 100, 70, 100] {
            let x = ones(rows);
            let (a, b) = (softmax(&x).unwrap(), softmax(&x).unwrap());
            assert!(held() <= most + 128, "{} of {most} after {rows} rows", held());
            drop((a, b));
            assert!(held() <= most + 128, "{} of {most} behind {rows} rows", held());
        }
        // The largest are there, and the next of them take nothing.
        let idle = ladder.ledger.spare.idle();
        assert!(idle >= 2 * of(100), "{idle}");
        let x = ones(100);
        drop((softmax(&x).unwrap(), softmax(&x).unwrap()));
        assert_eq!(ladder.ledger.spare.idle(), idle);
    }

    #[test]
    fn what_a_composed_form_may_still_read_is_not_taken() {
        let composed = Ladder::new(Policy { force: Some(Rung::Composed), ..Policy::default() });
        let fused = Ladder::new(Policy::default());
        let x = ones(64);
        let entered = fused.clone().enter();
        let y = softmax(&x).unwrap();
        drop(entered);
        let entered = composed.clone().enter();
        let _z = softmax(&y).unwrap();
        drop(entered);
        // As a form does whose result is a view of what it was given: it holds the buffer, and no lease of it.
        let (view, want) = (y.candle().unwrap().clone(), y.to_f32().unwrap());
        drop(y);
        let twos = Tensor::from_f32(&vec![2.0; 64 * 256], &[64, 256], DType::F32, &Place::cpu()).unwrap();
        let _ = results(&fused, &twos);
        assert_eq!(view.flatten_all().unwrap().to_vec1::<f32>().unwrap(), want);
    }
}
