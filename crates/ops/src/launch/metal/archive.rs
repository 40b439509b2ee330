//! Compiled pipelines on disk (Metal's binary archives), so that the next process need not compile
//! them. One file per kind of GPU.
#![allow(unsafe_code, reason = "an archive that only the holder of a lock touches")]

use crate::{Error, Result};
use candle_metal_kernels::metal::{ComputePipeline, Device as Gpu, Function};
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSString, NSURL};
use objc2_metal::{
    MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLComputePipelineDescriptor, MTLDevice, MTLPipelineOption,
};
use std::path::{Path, PathBuf};

/// The archive of a device.
pub(super) struct Archive {
    raw: Retained<ProtocolObject<dyn MTLBinaryArchive>>,
    name: String,
    /// Whether it has pipelines that its file lacks.
    has_grown: bool,
}

// SAFETY: it is used by one thread at a time, the one that holds the lock of the pipeline cache.
unsafe impl Send for Archive {}

impl Archive {
    /// The archive that an earlier process left in `folder`, or an empty one. A file that Metal
    /// rejects, perhaps from another macOS version, is replaced. None if the system has no
    /// archives.
    pub(super) fn open(gpu: &Gpu, folder: &Path) -> Option<Archive> {
        let name = format!("{}.metal-archive", gpu.architecture_name());
        let descriptor = MTLBinaryArchiveDescriptor::new();
        if let Some(url) = url(&folder.join(&name)).filter(|_| folder.join(&name).is_file()) {
            descriptor.setUrl(Some(&url));
            if let Ok(raw) = gpu.as_ref().newBinaryArchiveWithDescriptor_error(&descriptor) {
                return Some(Archive { raw, name, has_grown: false });
            }
            descriptor.setUrl(None);
        }
        let raw = gpu.as_ref().newBinaryArchiveWithDescriptor_error(&descriptor).ok()?;
        Some(Archive { raw, name, has_grown: false })
    }

    /// The pipeline from the archive, or compiled and added to it.
    pub(super) fn pipeline(&mut self, gpu: &Gpu, function: &Function) -> Result<ComputePipeline> {
        let descriptor = MTLComputePipelineDescriptor::new();
        descriptor.setComputeFunction(Some(function.as_ref()));
        descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&*self.raw])));
        let make = |options| {
            let device = gpu.as_ref();
            device.newComputePipelineStateWithDescriptor_options_reflection_error(&descriptor, options, None)
        };
        if let Ok(found) = make(MTLPipelineOption::FailOnBinaryArchiveMiss) {
            return Ok(ComputePipeline::new(found));
        }
        let compiled = make(MTLPipelineOption::None).map_err(|e| Error::call("metal kernel", e.to_string()))?;
        self.has_grown |= self.raw.addComputePipelineFunctionsWithDescriptor_error(&descriptor).is_ok();
        Ok(ComputePipeline::new(compiled))
    }

    /// Writes the archive to `folder` if it has grown: to a temporary file first, so that no other
    /// process reads half a file.
    pub(super) fn save(&mut self, folder: &Path) -> Result<()> {
        if !self.has_grown {
            return Ok(());
        }
        let (path, temporary) = (folder.join(&self.name), folder.join(format!("{}.{}", self.name, std::process::id())));
        let fail = |why: String| Error::call("metal", format!("{} cannot be written: {why}", path.display()));
        std::fs::create_dir_all(folder).map_err(|e| fail(e.to_string()))?;
        let url = url(&temporary).ok_or_else(|| fail("its name is not Unicode".into()))?;
        let written = self.raw.serializeToURL_error(&url).map_err(|e| e.localizedDescription().to_string());
        let renamed = written.and_then(|()| std::fs::rename(&temporary, &path).map_err(|e| e.to_string()));
        if let Err(why) = renamed {
            let _ = std::fs::remove_file(&temporary);
            return Err(fail(why));
        }
        self.has_grown = false;
        Ok(())
    }
}

fn url(path: &Path) -> Option<Retained<NSURL>> {
    Some(NSURL::fileURLWithPath(&NSString::from_str(PathBuf::from(path).to_str()?)))
}
