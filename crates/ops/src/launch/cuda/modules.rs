//! Kernels as the driver has them: each loaded once in the life of the process, however often the device is opened.

use super::describe;
use crate::{Error, Result};
use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::sys::CUfunction_attribute_enum as Attribute;
use candle_core::cuda_backend::cudarc::driver::{CudaFunction, CudaModule};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What `build.rs` made of an op's `kernel.cu`: machine code for the architecture of the build, and PTX for those after it.
pub(crate) type Binary = &'static [u8];

/// A function of an op's `kernel.cu`.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    binary: Binary,
    pub(super) function: String,
    /// Shared memory of a block, in bytes, beside what the kernel declares.
    pub(super) shared: usize,
}

impl Kernel {
    pub(crate) fn new(binary: Binary, function: impl Into<String>) -> Kernel {
        Kernel { binary, function: function.into(), shared: 0 }
    }

    /// The same with shared memory of a size that the host decides.
    pub(crate) fn shared(self, bytes: usize) -> Kernel {
        Kernel { shared: bytes, ..self }
    }
}

/// A GPU by its number, and a kernel's text by where it lies.
type Place = (usize, usize);

/// A kernel that is loaded.
#[derive(Clone)]
pub(super) struct Function {
    pub(super) function: CudaFunction,
    /// Whether it waits for the launches before it by itself (`wait_for_earlier` in `prelude.cuh`), so that it may begin while they run.
    pub(super) waits: bool,
}

/// The first architecture for whose texts `wait_for_earlier` is more than nothing.
const WAITS: i32 = 90;

#[derive(Default)]
struct Loaded {
    modules: HashMap<Place, Arc<CudaModule>>,
    functions: HashMap<Place, HashMap<String, Function>>,
}

pub(super) fn function(device: &CudaDevice, kernel: &Kernel) -> Result<Function> {
    static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);
    let stream = device.cuda_stream();
    let context = stream.context();
    let place = (context.ordinal(), kernel.binary.as_ptr().addr());
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let loaded = loaded.get_or_insert_default();
    if let Some(function) = loaded.functions.get(&place).and_then(|all| all.get(&kernel.function)) {
        return Ok(function.clone());
    }
    let fail = |e| Error::call("cuda", format!("{}: {}", kernel.function, describe(e)));
    let module = match loaded.modules.get(&place) {
        Some(module) => module.clone(),
        None => {
            let module =
                context.load_module(candle_core::cuda_backend::cudarc::nvrtc::Ptx::from_binary(kernel.binary.to_vec()));
            let module = module.map_err(fail)?;
            loaded.modules.insert(place, module.clone());
            module
        }
    };
    context.bind_to_thread().map_err(fail)?;
    let function = module.load_function(&kernel.function).map_err(fail)?;
    // All that is left beside the shared memory that the kernel declares itself: another call may take more of it than this one.
    let most = context.attribute(
        candle_core::cuda_backend::cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
    );
    let own = function.get_attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES).map_err(fail)?;
    let most = most.map_err(fail)? - own;
    function.set_attribute(Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most).map_err(fail)?;
    // What the text was compiled as, which the card does not tell: the PTX for older ones runs on every newer one, and waits for nothing.
    let waits = function.get_attribute(Attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION).map_err(fail)? >= WAITS;
    let function = Function { function, waits };
    loaded.functions.entry(place).or_default().insert(kernel.function.clone(), function.clone());
    Ok(function)
}
