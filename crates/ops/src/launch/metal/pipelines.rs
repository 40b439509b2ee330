//! Pipelines: a kernel compiled for one device with its function constants set. Each is made once in the life of the process, however
//! often the device is opened, and, where there is a folder for it, kept in an archive for the next one.

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
    /// The text, prelude included: see [`super::kernels`].
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

/// What names a GPU for as long as the system runs.
type GpuId = u64;

#[derive(Default)]
struct DeviceBuffer {
    /// Where archives are.
    folder: Option<PathBuf>,
    libraries: HashMap<(GpuId, usize), Library>,
    pipelines: HashMap<(GpuId, Kernel), ComputePipeline>,
    archives: HashMap<GpuId, Option<Archive>>,
}

fn made() -> MutexGuard<'static, Option<DeviceBuffer>> {
    static MADE: Mutex<Option<DeviceBuffer>> = Mutex::new(None);
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on pipelines are looked for in an archive in this folder, before they are compiled. Archives that have grown are written;
/// what cannot be written is compiled again next time.
pub(crate) fn keep_in(folder: &Path) -> Result<()> {
    let mut made = made();
    let made = made.get_or_insert_default();
    made.folder = Some(folder.to_owned());
    // Where pipelines were made before there was a folder, there may be an archive from now on.
    made.archives.retain(|_, archive| archive.is_some());
    made.archives.values_mut().flatten().try_for_each(|archive| archive.save(folder))
}

/// The pipeline of a kernel. Compiling takes tens of milliseconds, so each library and each pipeline is kept for as long as the
/// process lives.
pub(super) fn pipeline(device: &MetalDevice, kernel: &Kernel) -> Result<ComputePipeline> {
    let mut made = made();
    let DeviceBuffer { folder, libraries, pipelines, archives } = made.get_or_insert_default();
    let gpu = device.metal_device();
    let id = gpu.registry_id();
    let key = (id, kernel.clone());
    if let Some(pipeline) = pipelines.get(&key) {
        return Ok(pipeline.clone());
    }
    let function = &kernel.function;
    let fail = |e: MetalKernelError| Error::call("metal kernel", format!("{function}: {e}"));
    // The text is a constant of this program, so its address names it.
    let library = match libraries.entry((id, kernel.source.as_ptr().addr())) {
        Entry::Occupied(kept) => kept.into_mut(),
        Entry::Vacant(room) => {
            let options = MTLCompileOptions::new();
            // Infinities mask scores and NaN must stay NaN; fast math promises neither.
            options.setMathMode(MTLMathMode::Safe);
            room.insert(gpu.new_library_with_source(kernel.source, Some(&options)).map_err(fail)?)
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
