//! Buffers of results that are gone, for those to come: a forward pass then takes no memory from the system, whose fresh pages
//! cost more than many an op that fills them.

use crate::cpu::elem::Elem;
use crate::cpu::gemm::LINE;
use candle_core::{CpuStorage, InplaceOp1, Layout, WithDType};
use half::{bf16, f16};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// Results below this come and go faster than they could be looked up here.
const LEAST: usize = 16 << 10;

/// How many of a type are kept, and of how many bytes together.
const MOST: usize = 24;
const MOST_BYTES: usize = 512 << 20;

/// The spare buffers of one ladder. Their contents are whatever was in them.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    f32s: Mutex<Vec<Vec<f32>>>,
    bf16s: Mutex<Vec<Vec<bf16>>>,
    f16s: Mutex<Vec<Vec<f16>>>,
}

/// An element whose buffers are kept.
pub(crate) trait Kept: Sized {
    fn of(spare: &Spare) -> &Mutex<Vec<Vec<Self>>>;
}

impl Kept for f32 {
    fn of(spare: &Spare) -> &Mutex<Vec<Vec<f32>>> {
        &spare.f32s
    }
}

impl Kept for bf16 {
    fn of(spare: &Spare) -> &Mutex<Vec<Vec<bf16>>> {
        &spare.bf16s
    }
}

impl Kept for f16 {
    fn of(spare: &Spare) -> &Mutex<Vec<Vec<f16>>> {
        &spare.f16s
    }
}

/// Elements that become a tensor, the first of them at the beginning of a line of the cache: kernels read and write lines, and
/// what lies across two of them costs twice.
pub(crate) struct Fresh<T> {
    buffer: Vec<T>,
    first: usize,
    len: usize,
}

impl<T> From<Vec<T>> for Fresh<T> {
    fn from(buffer: Vec<T>) -> Fresh<T> {
        Fresh { len: buffer.len(), first: 0, buffer }
    }
}

impl<T> Deref for Fresh<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.buffer[self.first..][..self.len]
    }
}

impl<T> DerefMut for Fresh<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.buffer[self.first..][..self.len]
    }
}

impl<T: WithDType> Fresh<T> {
    /// As a tensor that takes the buffer over.
    pub(crate) fn tensor(self, dims: &[usize]) -> candle_core::Result<candle_core::Tensor> {
        let Fresh { buffer, first, len } = self;
        if buffer.len() == len {
            return candle_core::Tensor::from_vec(buffer, dims, &candle_core::Device::Cpu);
        }
        let all = buffer.len();
        candle_core::Tensor::from_vec(buffer, all, &candle_core::Device::Cpu)?.narrow(0, first, len)?.reshape(dims)
    }
}

impl Spare {
    /// `len` elements of no meaning: the smallest spare buffer that holds them, unless it would be wasted on them.
    pub(crate) fn take<T: Elem>(&self, len: usize) -> Fresh<T> {
        let buffer = self.buffer::<T>(len + LINE / size_of::<T>());
        Fresh { first: buffer.as_ptr().align_offset(LINE), len, buffer }
    }

    fn buffer<T: Elem>(&self, len: usize) -> Vec<T> {
        if len * size_of::<T>() >= LEAST {
            let mut spare = T::of(self).lock().unwrap_or_else(PoisonError::into_inner);
            let fits = |v: &Vec<T>| v.len() >= len && v.len() / 2 <= len;
            let best = spare.iter().enumerate().filter(|(_, v)| fits(v)).min_by_key(|(_, v)| v.len());
            if let Some((i, _)) = best {
                let mut found = spare.swap_remove(i);
                found.truncate(len);
                return found;
            }
        }
        // In steps of an eighth, so that batches of nearly one size share.
        let step = (len / 8).next_power_of_two();
        let mut fresh = Vec::with_capacity(len.next_multiple_of(step));
        fresh.resize(len, T::default());
        fresh
    }

    /// Keeps the buffer of a tensor that nobody reads any more; the tensor is left empty.
    pub(crate) fn reclaim(&self, tensor: &candle_core::Tensor) {
        // A tensor that is not on the CPU keeps what it has.
        let _ = tensor.inplace_op1(&Reclaim(self));
    }

    /// Keeps a buffer, and lets the one kept longest go where there are too many.
    fn give<T: Elem>(&self, mut buffer: Vec<T>) {
        if buffer.capacity() * size_of::<T>() < LEAST {
            return;
        }
        buffer.resize(buffer.capacity(), T::default());
        let mut spare = T::of(self).lock().unwrap_or_else(PoisonError::into_inner);
        spare.push(buffer);
        while spare.len() > MOST || spare.iter().map(|v| v.len() * size_of::<T>()).sum::<usize>() > MOST_BYTES {
            spare.remove(0);
        }
    }
}

struct Reclaim<'a>(&'a Spare);

impl InplaceOp1 for Reclaim<'_> {
    fn name(&self) -> &'static str {
        "reclaim"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        match storage {
            CpuStorage::F32(v) => self.0.give(std::mem::take(v)),
            CpuStorage::BF16(v) => self.0.give(std::mem::take(v)),
            CpuStorage::F16(v) => self.0.give(std::mem::take(v)),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, Ladder, Place, Policy, Rung, Tensor, softmax};
    use std::sync::Arc;

    fn results(ladder: &Arc<Ladder>, x: &Tensor) -> (usize, Vec<f32>) {
        let _here = ladder.clone().enter();
        let y = softmax(x).unwrap();
        let at = y.candle().unwrap().storage_and_layout().0;
        let candle_core::Storage::Cpu(candle_core::CpuStorage::F32(v)) = &*at else { panic!("f32 on the CPU") };
        (v.as_ptr() as usize, y.to_f32().unwrap())
    }

    #[test]
    fn a_result_takes_the_buffer_of_one_that_is_gone() {
        let ladder = Ladder::new(Policy::default());
        let x = Tensor::from_f32(&vec![1.0; 64 * 256], &[64, 256], DType::F32, &Place::cpu()).unwrap();
        let (first, y) = results(&ladder, &x);
        let smaller = x.narrow(0, 0, 50).unwrap();
        let (second, z) = results(&ladder, &smaller);
        assert_eq!((first, y[0]), (second, z[0]));
        // One that is still held is not taken, nor one with a view that is.
        let _here = ladder.clone().enter();
        let held = softmax(&x).unwrap().narrow(0, 3, 1).unwrap();
        let before = held.to_f32().unwrap();
        let (third, _) =
            results(&ladder, &Tensor::from_f32(&vec![2.0; 64 * 256], &[64, 256], DType::F32, &Place::cpu()).unwrap());
        assert_ne!(first, third);
        assert_eq!(held.to_f32().unwrap(), before);
    }

    #[test]
    fn what_a_composed_form_may_still_read_is_not_taken() {
        let composed = Ladder::new(Policy { force: Some(Rung::Composed), ..Policy::default() });
        let fused = Ladder::new(Policy::default());
        let x = Tensor::from_f32(&vec![1.0; 64 * 256], &[64, 256], DType::F32, &Place::cpu()).unwrap();
        let entered = fused.clone().enter();
        let y = softmax(&x).unwrap();
        drop(entered);
        let entered = composed.clone().enter();
        let _z = softmax(&y).unwrap();
        drop(entered);
        // As a form does whose result is a view of what it was given: it holds the buffer, and no lease of it.
        let (view, want) = (y.candle().unwrap().clone(), y.to_f32().unwrap());
        drop(y);
        let _ =
            results(&fused, &Tensor::from_f32(&vec![2.0; 64 * 256], &[64, 256], DType::F32, &Place::cpu()).unwrap());
        assert_eq!(view.flatten_all().unwrap().to_vec1::<f32>().unwrap(), want);
    }
}
