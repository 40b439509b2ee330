//! Pipelines: kernels compiled for one device with their function constants set. Each is made once
//! per process, however often the device is opened, and stored in an archive for the next process
//! if there is a folder for it.

use super::archive::Archive;
use crate::{Error, Result};
use candle_core::MetalDevice;
use candle_metal_kernels::MetalKernelError;
use candle_metal_kernels::metal::{ComputePipeline, ConstantValues, Library, Value};
use objc2_metal::{MTLCompileOptions, MTLMathMode};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A function of an op's `kernel.metal`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    /// The source, prelude included: see [`super::kernels`].
    source: &'static str,
    pub(super) function: String,
    /// In the order of their `[[function_constant(n)]]`.
    constants: Vec<Constant>,
}

/// The value of a function constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Constant {
    /// `bool`.
    Flag(bool),
    /// `ushort`.
    Number(u16),
}

impl Kernel {
    pub(crate) fn new(source: &'static str, function: impl Into<String>) -> Kernel {
        Kernel { source, function: function.into(), constants: Vec::new() }
    }

    /// The same with its next function constant set.
    pub(crate) fn flag(mut self, value: bool) -> Kernel {
        self.constants.push(Constant::Flag(value));
        self
    }

    /// The same with its next function constant set.
    pub(crate) fn number(mut self, value: u16) -> Kernel {
        self.constants.push(Constant::Number(value));
        self
    }

    fn values(&self) -> ConstantValues {
        let value = |constant: &Constant| match *constant {
            Constant::Flag(value) => Value::Bool(value),
            Constant::Number(value) => Value::U16(value),
        };
        ConstantValues::new(self.constants.iter().map(value).enumerate().collect())
    }
}

/// Identifies a GPU for as long as the system runs.
type GpuId = u64;

#[derive(Default)]
struct PipelineCache {
    /// The folder of the archives.
    folder: Option<PathBuf>,
    libraries: HashMap<(GpuId, usize), Library>,
    pipelines: HashMap<(GpuId, Kernel), ComputePipeline>,
    archives: HashMap<GpuId, Option<Archive>>,
}

fn cache() -> MutexGuard<'static, Option<PipelineCache>> {
    static CACHE: Mutex<Option<PipelineCache>> = Mutex::new(None);
    CACHE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks pipelines up in an archive in this folder from now on, before compiling them. Writes the
/// archives that have grown; what cannot be written is compiled again next time.
pub(crate) fn cache_kernels_in(folder: &Path) -> Result<()> {
    let mut cache = cache();
    let cache = cache.get_or_insert_default();
    cache.folder = Some(folder.to_owned());
    // GPUs whose pipelines were made without a folder can have an archive from now on.
    cache.archives.retain(|_, archive| archive.is_some());
    cache.archives.values_mut().flatten().try_for_each(|archive| archive.save(folder))
}

/// The pipeline of a kernel. Compiling takes tens of milliseconds, so libraries and pipelines are
/// cached for the life of the process.
pub(super) fn pipeline(device: &MetalDevice, kernel: &Kernel) -> Result<ComputePipeline> {
    let mut cache = cache();
    let PipelineCache { folder, libraries, pipelines, archives } = cache.get_or_insert_default();
    let gpu = device.metal_device();
    let id = gpu.registry_id();
    let key = (id, kernel.clone());
    if let Some(pipeline) = pipelines.get(&key) {
        return Ok(pipeline.clone());
    }
    let function = &kernel.function;
    let fail = |e: MetalKernelError| Error::call("metal kernel", format!("{function}: {e}"));
    // The source is a constant of this program, so its address identifies it.
    let library = match libraries.entry((id, kernel.source.as_ptr().addr())) {
        Entry::Occupied(cached) => cached.into_mut(),
        Entry::Vacant(vacant) => {
            let options = MTLCompileOptions::new();
            // Kernels mask scores with infinities, and NaN must stay NaN; fast math guarantees
            // neither.
            options.setMathMode(MTLMathMode::Safe);
            vacant.insert(gpu.new_library_with_source(kernel.source, Some(&options)).map_err(fail)?)
        }
    };
    let entry = library.get_function(function, Some(&kernel.values())).map_err(fail)?;
    let archive = archives.entry(id).or_insert_with(|| folder.as_deref().and_then(|f| Archive::open(gpu, f)));
    let pipeline = match archive {
        Some(archive) => archive.pipeline(gpu, &entry)?,
        None => gpu.new_compute_pipeline_state_with_function(&entry).map_err(fail)?,
    };
    pipelines.insert(key, pipeline.clone());
    Ok(pipeline)
}
