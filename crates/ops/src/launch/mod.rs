//! Opens devices and launches kernels on them, one file or folder per device. A build without a
//! device has a stub whose `open` says so.

pub(crate) mod cpu;
#[cfg(any(cuda, metal))]
pub(crate) mod params;
#[cfg(any(cuda, metal))]
pub(crate) mod strided;

#[cfg(any(cuda, metal))]
pub(crate) use params::params;

/// Workspace of a cuBLASLt product, of the size that NVIDIA advises for Hopper. It is here and not
/// in `cuda/blas.rs`, because plans count it in builds without CUDA too.
pub(crate) const BLAS_WORKSPACE: usize = 32 << 20;

#[cfg(not(all(cuda, metal)))]
macro_rules! unavailable {
    ($kind:ident, $why:literal) => {
        use crate::{Device, DeviceInfo, Error, Result};

        pub(crate) fn open(n: usize) -> Result<candle_core::Device> {
            Err(Error::Device { device: Device::$kind(n), why: $why.into() })
        }

        pub(crate) fn count() -> usize {
            0
        }

        pub(crate) fn info(n: usize) -> Result<DeviceInfo> {
            Err(Error::Device { device: Device::$kind(n), why: $why.into() })
        }
    };
}

#[cfg(cuda)]
pub(crate) mod cuda;
#[cfg(not(cuda))]
pub(crate) mod cuda {
    //! Stub of the CUDA launcher for builds without CUDA.
    pub(crate) mod buffers {
        //! Without a device there are no buffers.

        /// Empty.
        #[derive(Debug, Default)]
        pub(crate) struct Buffers;

        impl Buffers {
            pub(crate) fn put_back(&self, _: u64, _: bool) {}

            pub(crate) fn bytes(&self) -> u64 {
                0
            }
        }

        pub(crate) fn address_of(_: &candle_core::Tensor) -> Option<u64> {
            None
        }
    }
    pub(crate) mod pinned {
        //! Without a device there is nothing to copy from.

        use crate::{Result, Tensor};

        pub(crate) fn floats(_: &Tensor) -> Result<Option<Vec<f32>>> {
            Ok(None)
        }

        pub(crate) fn numbers(_: &Tensor) -> Result<Option<Vec<u32>>> {
            Ok(None)
        }
    }

    pub(crate) mod uploads {
        //! Without a device there is nothing to copy to.

        pub(crate) fn tensor(device: &candle_core::Device, values: &[u32]) -> crate::Result<candle_core::Tensor> {
            Ok(candle_core::Tensor::new(values, device)?)
        }
    }

    pub(crate) mod graph {
        //! Without a device no CUDA graph is captured. The parameters exist on the host, so that
        //! tests of capture need no GPU.
        use crate::{Place, Result};
        use std::cell::RefCell;

        #[derive(Default)]
        pub(crate) struct GraphParams(RefCell<Vec<u32>>);

        impl GraphParams {
            pub(crate) fn open(_: &Place) -> Result<Option<GraphParams>> {
                Ok(None)
            }

            pub(crate) fn address(&self, at: usize) -> u64 {
                4 * at as u64
            }

            pub(crate) fn view(&self, at: usize, len: usize) -> Result<candle_core::Tensor> {
                Ok(candle_core::Tensor::new(&self.0.borrow()[at..at + len], &candle_core::Device::Cpu)?)
            }

            pub(crate) fn write(&self, at: usize, words: &[u32]) -> Result<()> {
                let (mut all, end) = (self.0.borrow_mut(), at + words.len());
                let len = all.len().max(end);
                all.resize(len, 0);
                all[at..end].copy_from_slice(words);
                Ok(())
            }

            pub(crate) fn copy_to_device(&self, _: usize, _: usize) -> Result<()> {
                Ok(())
            }

            pub(crate) fn wait(&self) -> Result<()> {
                Ok(())
            }

            pub(crate) fn capture<T>(&self, f: impl FnOnce() -> T) -> Result<(T, Graph)> {
                Ok((f(), Graph))
            }
        }

        /// Runs nothing.
        pub(crate) struct Graph;

        impl Graph {
            pub(crate) fn launch(&self) -> Result<()> {
                Ok(())
            }
        }
    }
    unavailable!(Cuda, "this build has no CUDA; build with `--features cuda` (needs the CUDA toolkit)");
}

#[cfg(metal)]
pub(crate) mod metal;
#[cfg(not(metal))]
pub(crate) mod metal {
    //! Stub of the Metal launcher for builds without Metal.
    pub(crate) fn cache_kernels_in(_: &std::path::Path) -> Result<()> {
        Ok(())
    }

    pub(crate) mod mapped {
        //! Without a device nothing reads a mapped file in place.

        pub(crate) fn lend(
            _: &candle_core::Device,
            _: &crate::weights::Mapped,
            _: std::ops::Range<usize>,
            _: (&[usize], crate::DType),
        ) -> Option<candle_core::Tensor> {
            None
        }
    }

    pub(crate) mod buffers {
        //! Without a device there are no buffers.

        /// Empty.
        #[derive(Debug, Default)]
        pub(crate) struct Buffers;

        pub(crate) fn to_host(t: &candle_core::Tensor) -> crate::Result<candle_core::Tensor> {
            Ok(t.to_device(&candle_core::Device::Cpu)?)
        }
    }
    unavailable!(Metal, "this build has no Metal; it is built in on macOS");

    /// As for a GPU that is newer than the M2.
    pub(crate) fn has_fast_bf16(_: usize) -> bool {
        true
    }
}
