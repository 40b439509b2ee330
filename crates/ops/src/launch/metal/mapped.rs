//! Weights read in place from a mapped file: on unified memory, a copy would hold the same bytes
//! twice.

use crate::weights::Mapped;
use crate::{DType, ladder};
use block2::RcBlock;
use candle_core::op::BackpropOp;
use candle_core::{MetalDevice, MetalStorage, Storage, Tensor};
use candle_metal_kernels::RESOURCE_OPTIONS;
use candle_metal_kernels::metal::Buffer;
use objc2_metal::MTLDevice;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// Page size. A buffer over host memory consists of whole pages. Smaller tensors are not worth one.
const PAGE: usize = if cfg!(all(target_os = "macos", target_arch = "aarch64")) { 16 << 10 } else { 4 << 10 };

/// Alignment of quantized blocks that every kernel may rely on.
const BLOCKS: usize = 16;

/// These bytes of a mapped file as a tensor, if the device can read them in place; None if they
/// must be copied.
pub(crate) fn lend(
    device: &candle_core::Device,
    file: &Mapped,
    bytes: Range<usize>,
    (dims, dtype): (&[usize], DType),
) -> Option<Tensor> {
    let candle_core::Device::Metal(device) = device else { return None };
    let all: &[u8] = (**file).as_ref();
    let size = dtype.size();
    // Kernels read four elements at once where alignment allows; a copy that allows it is worth its
    // memory.
    let aligned = if dtype == DType::U8 { BLOCKS } else { 4 * size };
    let (first, start) = (bytes.start / PAGE * PAGE, bytes.start % PAGE);
    let needed = dims.iter().product::<usize>() * size;
    if bytes.len() != needed
        || needed < PAGE
        || bytes.end > all.len()
        || !start.is_multiple_of(aligned)
        || !all.as_ptr().addr().is_multiple_of(PAGE)
        || !device.metal_device().as_ref().hasUnifiedMemory()
    {
        return None;
    }
    let length = (bytes.end - first).next_multiple_of(PAGE);
    let buffer = Arc::new(borrow(device, file, first, length)?);
    ladder::current().ledger.metal.hold(buffer.clone(), device);
    let storage = MetalStorage::new(buffer, device.clone(), length / size, dtype.candle());
    let all = Tensor::from_storage(Storage::Metal(storage), length / size, BackpropOp::none(), false);
    all.narrow(0, start / size, needed / size).and_then(|t| t.reshape(dims)).ok()
}

/// A buffer of `length` bytes from `first` on, both multiples of the page size. It keeps the file
/// mapped until the buffer is dropped.
fn borrow(device: &MetalDevice, file: &Mapped, first: usize, length: usize) -> Option<Buffer> {
    let gpu = device.metal_device().as_ref();
    if length > gpu.maxBufferLength() {
        return None;
    }
    let start = NonNull::from(&(**file).as_ref()[first..]).cast::<c_void>();
    let map = file.clone();
    let release = RcBlock::new(move |_: NonNull<c_void>, _: usize| {
        let _: &Mapped = &map;
    });
    // SAFETY: whole pages of a map, which consists of whole pages, the last of them filled with
    // zeros after the end of the file. The block keeps the map for as long as the buffer lives, and
    // no kernel writes to a weight.
    #[allow(unsafe_code, reason = "memory that the device reads where it lies")]
    let raw = unsafe {
        gpu.newBufferWithBytesNoCopy_length_options_deallocator(start, length, RESOURCE_OPTIONS, Some(&release))
    };
    raw.map(Buffer::new)
}
