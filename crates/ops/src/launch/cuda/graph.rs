//! CUDA graphs: the parameters that a captured pass reads, and the graph itself. `replay/` decides
//! what is captured and when.

use super::pinned::Pinned;
use super::view::address;
use super::{capture_lock, describe, no_memory};
use crate::place::Kind;
use crate::{Error, Place, Result};
use candle_core::cuda_backend::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle_core::cuda_backend::cudarc::driver::{CudaGraph, CudaStream, DriverError, result};
use candle_core::cuda_backend::{CudaDType, CudaStorage};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, Storage, Tensor};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// Words of the parameters: enough for page tables of 64 sequences of 64 thousand tokens, which
/// need the most.
const WORDS: usize = 1 << 18;

/// The words that differ between batches: pinned on the host, where a replay writes them, and on
/// the device, where kernels read them.
pub(crate) struct GraphParams {
    stream: Arc<CudaStream>,
    /// All words as a tensor with one axis.
    words: Tensor,
    address: u64,
    host: RefCell<Pinned>,
}

impl GraphParams {
    /// None if the device is not CUDA, or a phantom.
    pub(crate) fn open(place: &Place) -> Result<Option<GraphParams>> {
        let Kind::Open(_, candle_core::Device::Cuda(device)) = &place.0 else { return Ok(None) };
        let storage = zeros(device).map_err(|e| no_memory(4 * WORDS, &e))?;
        let address = address(&storage)?;
        let words = Tensor::from_storage(Storage::Cuda(storage), WORDS, BackpropOp::none(), false);
        let stream = device.cuda_stream();
        let host = RefCell::new(
            Pinned::new(stream.context(), 4 * WORDS).map_err(fail("pinned memory for CUDA graph parameters"))?,
        );
        Ok(Some(GraphParams { stream, words, address, host }))
    }

    /// The device address of a word.
    pub(crate) fn address(&self, at: usize) -> u64 {
        self.address + 4 * at as u64
    }

    /// Words as a tensor.
    pub(crate) fn view(&self, at: usize, len: usize) -> Result<Tensor> {
        Ok(self.words.narrow(0, at, len)?)
    }

    /// Writes words on the host. The device must have copied the previous ones: see
    /// [`GraphParams::wait`].
    pub(crate) fn write(&self, at: usize, words: &[u32]) -> Result<()> {
        let range = within(at, words.len())?;
        let mut host = self.host.borrow_mut();
        let slots = host.bytes()[4 * range.start..4 * range.end].chunks_exact_mut(4);
        slots.zip(words).for_each(|(slot, word)| slot.copy_from_slice(&word.to_ne_bytes()));
        Ok(())
    }

    /// Copies words to the device, in stream order.
    pub(crate) fn copy_to_device(&self, at: usize, len: usize) -> Result<()> {
        let range = within(at, len)?;
        let mut host = self.host.borrow_mut();
        self.stream.context().bind_to_thread().map_err(fail("copying CUDA graph parameters"))?;
        // SAFETY: both ends have these words, and live as long as the parameters do; the host waits
        // before it writes them again.
        #[allow(unsafe_code, reason = "a copy to the device")]
        let copied = unsafe {
            result::memcpy_htod_async(
                self.address(at),
                &host.bytes()[4 * range.start..4 * range.end],
                self.stream.cu_stream(),
            )
        };
        copied.map_err(fail("copying CUDA graph parameters"))
    }

    /// Waits until the stream is idle.
    pub(crate) fn wait(&self) -> Result<()> {
        self.stream.synchronize().map_err(fail("waiting for an earlier pass"))
    }

    /// Captures what `f` launches as a CUDA graph. Nothing runs.
    pub(crate) fn capture<T>(&self, f: impl FnOnce() -> T) -> Result<(T, Graph)> {
        // Ends the capture on every path: a stream left capturing would accept no work any more.
        struct End<'a>(Option<&'a Arc<CudaStream>>);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.map(end);
            }
        }
        let _locked = capture_lock();
        // Only this thread's calls: other threads may use other devices.
        self.stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .map_err(fail("capturing a CUDA graph"))?;
        let mut open = End(Some(&self.stream));
        let out = f();
        open.0 = None;
        let graph = end(&self.stream).map_err(fail("capturing a CUDA graph"))?;
        let graph = graph.ok_or_else(|| Error::call("cuda", "the capture returned no CUDA graph"))?;
        graph.upload().map_err(fail("capturing a CUDA graph"))?;
        Ok((out, Graph(graph)))
    }
}

/// A captured pass.
pub(crate) struct Graph(CudaGraph);

impl Graph {
    /// Launches the graph. Its buffers and parameters must still exist.
    pub(crate) fn launch(&self) -> Result<()> {
        self.0.launch().map_err(fail("launching a CUDA graph"))
    }
}

/// Ends the capture. If a call left an error behind during the capture, the first attempt returns
/// that error and does not end it.
fn end(stream: &Arc<CudaStream>) -> Result<Option<CudaGraph>, DriverError> {
    let end = || stream.end_capture(CUgraphInstantiate_flags(0));
    end().or_else(|_| end())
}

fn zeros(device: &CudaDevice) -> candle_core::Result<CudaStorage> {
    Ok(u32::wrap_cuda_slice(device.alloc_zeros::<u32>(WORDS)?, device.clone()))
}

fn within(at: usize, len: usize) -> Result<Range<usize>> {
    let end = at.checked_add(len).filter(|end| *end <= WORDS);
    end.map(|end| at..end)
        .ok_or_else(|| Error::call("cuda", format!("{len} CUDA graph parameters from {at} on exceed {WORDS}")))
}

fn fail(what: &str) -> impl Fn(DriverError) -> Error {
    move |e| Error::call("cuda", format!("{what}: {}", describe(e)))
}
