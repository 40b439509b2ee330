//! Loaded kernels: each is loaded once per process, however often the device is opened.

use super::describe;
use crate::{Error, Result};
use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::sys::CUfunction_attribute_enum as Attribute;
use candle_core::cuda_backend::cudarc::driver::{CudaFunction, CudaModule};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The binary that `build.rs` compiled from an op's `kernel.cu`: machine code for the architecture
/// of the build, and PTX for later ones.
pub(crate) type Binary = &'static [u8];

/// A function of an op's `kernel.cu`.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    binary: Binary,
    pub(super) function: String,
    /// Dynamic shared memory of a block, in bytes, besides what the kernel declares.
    pub(super) shared: usize,
}

impl Kernel {
    pub(crate) fn new(binary: Binary, function: impl Into<String>) -> Kernel {
        Kernel { binary, function: function.into(), shared: 0 }
    }

    /// The same with dynamic shared memory.
    pub(crate) fn shared(self, bytes: usize) -> Kernel {
        Kernel { shared: bytes, ..self }
    }
}

/// A GPU's ordinal, and the address of the kernel's binary.
type ModuleKey = (usize, usize);

/// A loaded kernel.
#[derive(Clone)]
pub(super) struct Function {
    pub(super) function: CudaFunction,
    /// Whether it waits for earlier launches itself (`grid_dependency_sync` in `prelude.cuh`), so
    /// that it may begin while they run.
    pub(super) waits: bool,
}

/// The first architecture where `grid_dependency_sync` compiles to a wait.
const WAITS: i32 = 90;

#[derive(Default)]
struct Loaded {
    modules: HashMap<ModuleKey, Arc<CudaModule>>,
    functions: HashMap<ModuleKey, HashMap<String, Function>>,
}

pub(super) fn function(device: &CudaDevice, kernel: &Kernel) -> Result<Function> {
    static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);
    let stream = device.cuda_stream();
    let context = stream.context();
    let key = (context.ordinal(), kernel.binary.as_ptr().addr());
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let loaded = loaded.get_or_insert_default();
    if let Some(function) = loaded.functions.get(&key).and_then(|all| all.get(&kernel.function)) {
        return Ok(function.clone());
    }
    let fail = |e| Error::call("cuda", format!("{}: {}", kernel.function, describe(e)));
    let module = match loaded.modules.get(&key) {
        Some(module) => module.clone(),
        None => {
            let module =
                context.load_module(candle_core::cuda_backend::cudarc::nvrtc::Ptx::from_binary(kernel.binary.to_vec()));
            let module = module.map_err(fail)?;
            loaded.modules.insert(key, module.clone());
            module
        }
    };
    context.bind_to_thread().map_err(fail)?;
    let function = module.load_function(&kernel.function).map_err(fail)?;
    // All shared memory that the kernel does not declare itself: another call may need more of it
    // than this one.
    let most = context.attribute(
        candle_core::cuda_backend::cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
    );
    let declared = function.get_attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES).map_err(fail)?;
    let most = most.map_err(fail)? - declared;
    function.set_attribute(Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most).map_err(fail)?;
    // The architecture that the kernel was compiled for, not that of the card: PTX for an older
    // architecture runs on every newer one, but does not wait.
    let waits = function.get_attribute(Attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION).map_err(fail)? >= WAITS;
    let function = Function { function, waits };
    loaded.functions.entry(key).or_default().insert(kernel.function.clone(), function.clone());
    Ok(function)
}
