//! The buffers that results of CPU kernels share from call to call: a forward pass then takes no memory from the system, whose fresh
//! pages cost more than many an op that fills them.
//!
//! A rehearsal on phantoms finds how many buffers of which sizes a pass needs ([`Buffers`]), and these are part of the memory plan. A
//! ladder that was given them makes no others: a result takes the smallest one that holds it and is free. A batch smaller than the
//! one rehearsed has as many results alive at once, each of them smaller, so that they fit. What does not fit is taken from the system
//! and given back to it. A ladder that was given none learns as it goes, as in the rehearsal.

use crate::DType;
use crate::cpu::elem::Elem;
use crate::cpu::gemm::LINE;
use candle_core::{CpuStorage, InplaceOp1, Layout, Storage, WithDType};
use half::vec::HalfBitsVecExt;
use half::{bf16, f16};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Results below this come and go faster than they could be looked up here.
const LEAST: usize = 16 << 10;

/// How many of a type a ladder learns that was given none: the smallest are let go.
const MOST: usize = 24;

/// Sizes, in elements of f32, bf16 and f16, of the buffers that results share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffers([Vec<usize>; 3]);

/// The buffers of one ladder. Their contents are whatever was in them.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    f32s: Mutex<Shelf<f32>>,
    bf16s: Mutex<Shelf<bf16>>,
    f16s: Mutex<Shelf<f16>>,
    phantoms: AtomicUsize,
}

/// The buffers of one type, smallest first.
#[derive(Debug, Default)]
pub(crate) struct Shelf<T> {
    slots: Vec<Slot<T>>,
    /// There will be no others.
    is_planned: bool,
}

#[derive(Debug)]
struct Slot<T> {
    size: usize,
    state: State<T>,
}

#[derive(Debug)]
enum State<T> {
    /// Its memory has not been taken yet, or never will, as on phantoms.
    Unmade,
    Free(Vec<T>),
    /// To the result at this address; a phantom has a number of its own. A kernel that fails lets go of what it was lent, and
    /// nobody hears of it: such a slot is lost, and what it was for is taken from the system.
    Lent(usize),
}

impl<T: Elem> Shelf<T> {
    /// The smallest free slot of `len` elements; a new one where it may be.
    fn find(&mut self, len: usize) -> Option<&mut Slot<T>> {
        let is_free = |slot: &Slot<T>| slot.size >= len && !matches!(slot.state, State::Lent(_));
        let found = self.slots.iter().position(is_free);
        let at = found.or_else(|| {
            (!self.is_planned).then(|| {
                if self.slots.len() >= MOST
                    && let Some(i) = self.slots.iter().position(|slot| !matches!(slot.state, State::Lent(_)))
                {
                    self.slots.remove(i);
                }
                let at = self.slots.partition_point(|slot| slot.size < len);
                self.slots.insert(at, Slot { size: len, state: State::Unmade });
                at
            })
        })?;
        self.slots.get_mut(at)
    }

    fn lent(&mut self, key: usize) -> Option<&mut Slot<T>> {
        self.slots.iter_mut().find(|slot| matches!(slot.state, State::Lent(lent) if lent == key))
    }

    fn bytes(&self, only_lent: bool) -> u64 {
        let counted = self.slots.iter().filter(|slot| !only_lent || matches!(slot.state, State::Lent(_)));
        counted.fold(0, |sum: u64, slot| sum.saturating_add(slot.size.saturating_mul(size_of::<T>()) as u64))
    }
}

/// An element whose buffers are shared.
pub(crate) trait Shared: Sized {
    fn shelf(spare: &Spare) -> &Mutex<Shelf<Self>>;
    /// Zeros that the system has given, and nobody has written.
    fn zeros(len: usize) -> Vec<Self>;
}

macro_rules! shared {
    ($($type:ty: $shelf:ident, $zeros:expr;)*) => {
        $(impl Shared for $type {
            fn shelf(spare: &Spare) -> &Mutex<Shelf<$type>> {
                &spare.$shelf
            }
            fn zeros(len: usize) -> Vec<$type> {
                $zeros(len)
            }
        })*
    };
}

shared! {
    f32: f32s, |len| vec![0f32; len];
    bf16: bf16s, |len| vec![0u16; len].reinterpret_into::<bf16>();
    f16: f16s, |len| vec![0u16; len].reinterpret_into::<f16>();
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
    /// `len` elements of a buffer that has room for them from a line on.
    fn within(buffer: Vec<T>, len: usize) -> Fresh<T> {
        Fresh { first: buffer.as_ptr().align_offset(LINE), len, buffer }
    }

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

fn lock<T>(shelf: &Mutex<T>) -> MutexGuard<'_, T> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a result has of a ladder's buffers until it is gone.
#[derive(Debug)]
pub(crate) enum Loan {
    Real(candle_core::Tensor),
    Phantom(DType, usize),
}

impl Spare {
    /// `len` elements of no meaning.
    pub(crate) fn take<T: Elem>(&self, len: usize) -> Fresh<T> {
        if len * size_of::<T>() >= LEAST
            && let Some(slot) = lock(T::shelf(self)).find(len)
        {
            let buffer = match std::mem::replace(&mut slot.state, State::Unmade) {
                State::Free(buffer) => buffer,
                // Its pages are touched as far as they are needed.
                _ => T::zeros(slot.size + LINE / size_of::<T>()),
            };
            slot.state = State::Lent(buffer.as_ptr().addr());
            return Fresh::within(buffer, len);
        }
        Fresh::within(T::zeros(len + LINE / size_of::<T>()), len)
    }

    /// The loan that a kernel's result is, unless its memory is its own.
    pub(crate) fn loan(&self, result: &candle_core::Tensor) -> Option<Loan> {
        let is_lent = match &*result.storage_and_layout().0 {
            Storage::Cpu(CpuStorage::F32(v)) => lock(&self.f32s).lent(v.as_ptr().addr()).is_some(),
            Storage::Cpu(CpuStorage::BF16(v)) => lock(&self.bf16s).lent(v.as_ptr().addr()).is_some(),
            Storage::Cpu(CpuStorage::F16(v)) => lock(&self.f16s).lent(v.as_ptr().addr()).is_some(),
            _ => false,
        };
        is_lent.then(|| Loan::Real(result.clone()))
    }

    /// What a kernel would have been lent for its result.
    pub(crate) fn rehearse(&self, dtype: DType, len: usize) -> Option<Loan> {
        fn lend<T: Elem>(spare: &Spare, len: usize, key: usize) -> bool {
            let is_large = len.saturating_mul(size_of::<T>()) >= LEAST;
            let mut shelf = lock(T::shelf(spare));
            is_large && shelf.find(len).map(|slot| slot.state = State::Lent(key)).is_some()
        }
        let key = self.phantoms.fetch_add(1, Relaxed);
        let is_lent = match dtype {
            DType::F32 => lend::<f32>(self, len, key),
            DType::BF16 => lend::<bf16>(self, len, key),
            DType::F16 => lend::<f16>(self, len, key),
            DType::U32 | DType::U8 => false,
        };
        is_lent.then_some(Loan::Phantom(dtype, key))
    }

    /// Takes back what nobody reads any more; where somebody may, `is_shared`, the slot only.
    pub(crate) fn end(&self, loan: Loan, is_shared: bool) {
        match loan {
            // A tensor that is not on the CPU was lent nothing.
            Loan::Real(tensor) => drop(tensor.inplace_op1(&Reclaim { spare: self, is_shared })),
            Loan::Phantom(DType::F32, key) => self.give::<f32>(key, State::Unmade),
            Loan::Phantom(DType::BF16, key) => self.give::<bf16>(key, State::Unmade),
            Loan::Phantom(DType::F16, key) => self.give::<f16>(key, State::Unmade),
            Loan::Phantom(DType::U32 | DType::U8, _) => {}
        }
    }

    fn give<T: Elem>(&self, key: usize, state: State<T>) {
        if let Some(slot) = lock(T::shelf(self)).lent(key) {
            slot.state = state;
        }
    }

    /// Bytes of all buffers, whether they are in use or not.
    pub(crate) fn bytes(&self) -> u64 {
        self.count(false)
    }

    fn count(&self, only_lent: bool) -> u64 {
        let counts =
            [lock(&self.f32s).bytes(only_lent), lock(&self.bf16s).bytes(only_lent), lock(&self.f16s).bytes(only_lent)];
        counts.into_iter().fold(0, u64::saturating_add)
    }

    /// The sizes of all buffers.
    pub(crate) fn sizes(&self) -> Buffers {
        fn of<T>(shelf: &Mutex<Shelf<T>>) -> Vec<usize> {
            lock(shelf).slots.iter().map(|slot| slot.size).collect()
        }
        Buffers([of(&self.f32s), of(&self.bf16s), of(&self.f16s)])
    }

    /// Begins anew, with these buffers or none yet. Those that are lent now, to weights that ops have made, are no longer of ours:
    /// how many bytes they have is returned.
    pub(crate) fn begin(&self, planned: Option<&Buffers>) -> u64 {
        fn renew<T>(shelf: &Mutex<Shelf<T>>, sizes: Option<&Vec<usize>>) {
            let slots = sizes.into_iter().flatten().map(|size| Slot { size: *size, state: State::Unmade });
            *lock(shelf) = Shelf { slots: slots.collect(), is_planned: sizes.is_some() };
        }
        let kept = self.count(true);
        let of = |i: usize| planned.map(|Buffers(sizes)| &sizes[i]);
        renew(&self.f32s, of(0));
        renew(&self.bf16s, of(1));
        renew(&self.f16s, of(2));
        kept
    }
}

struct Reclaim<'a> {
    spare: &'a Spare,
    is_shared: bool,
}

impl Reclaim<'_> {
    fn take<T: Elem>(&self, values: &mut Vec<T>) {
        let key = values.as_ptr().addr();
        let state = if self.is_shared { State::Unmade } else { State::Free(std::mem::take(values)) };
        self.spare.give(key, state);
    }
}

impl InplaceOp1 for Reclaim<'_> {
    fn name(&self) -> &'static str {
        "reclaim"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        match storage {
            CpuStorage::F32(v) => self.take(v),
            CpuStorage::BF16(v) => self.take(v),
            CpuStorage::F16(v) => self.take(v),
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

    /// `count` results of so many rows each, alive together.
    fn some(count: usize, rows: usize) -> Vec<Tensor> {
        let x = Tensor::from_f32(&vec![1.0; rows * 256], &[rows, 256], DType::F32, &Place::cpu()).unwrap();
        (0..count).map(|_| softmax(&x).unwrap()).collect()
    }

    #[test]
    fn no_two_results_alive_share_a_buffer() {
        let ladder = Ladder::new(Policy::default());
        let _here = ladder.clone().enter();
        for rows in [64, 100, 64, 80] {
            let mut at: Vec<_> = some(4, rows).iter().map(address).collect();
            at.sort_unstable();
            at.dedup();
            assert_eq!(at.len(), 4);
        }
    }

    #[test]
    fn what_is_held_is_what_was_rehearsed() {
        let plan = Ladder::new(Policy::default());
        let rehearse = |rows: usize| {
            let x = Tensor::from_f32(&[], &[rows, 256], DType::F32, &Place::phantom(crate::Device::Cpu)).unwrap();
            drop((0..3).map(|_| softmax(&x).unwrap()).collect::<Vec<_>>());
        };
        plan.trace(|| rehearse(64));
        plan.trace(|| rehearse(100));
        let bytes = |rows: usize| (rows * 256 * 4) as u64;
        // A third result of 100 rows finds the slots of 64 too small; of either there were three.
        assert_eq!(plan.ledger.spare.bytes(), 3 * bytes(64) + 3 * bytes(100));
        let buffers = plan.ledger.buffers();

        let real = Ladder::new(Policy::default());
        let entered = real.clone().enter();
        // As a weight that an op has made: it is held beside the buffers.
        let weight = some(1, 30);
        real.ledger.reserve(&buffers);
        assert_eq!(real.ledger.live(), bytes(30));
        let held = || real.ledger.peak() - bytes(30);
        for rows in [64, 100, 7, 33, 90, 100] {
            drop(some(3, rows));
            assert_eq!(real.ledger.buffers(), buffers);
        }
        // What was taken from the system besides are the inputs: the largest of them, and no buffer.
        assert_eq!(held(), plan.ledger.spare.bytes() + bytes(100));
        // More at once than was planned: counted, and not kept.
        let many = some(9, 100);
        assert_eq!(held(), plan.ledger.spare.bytes() + bytes(100) + 6 * bytes(100));
        drop((many, weight));
        assert_eq!(real.ledger.buffers(), buffers);
        drop(entered);
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
