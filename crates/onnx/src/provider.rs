//! Execution providers: whether the library has one, and how to register it.

use crate::library::Library;
use ort::ep::{self, ExecutionProvider, ExecutionProviderDispatch};
use sconce_engine::Provider;

/// Checks that the library has the provider.
pub(crate) fn check(provider: Provider, library: &Library) -> Result<(), String> {
    let (name, available, package) = match provider {
        Provider::Cpu => return Ok(()),
        Provider::Cuda(_) => (ep::CUDA::NAME, ep::CUDA::is_available(), "install the package onnxruntime-gpu instead"),
        Provider::CoreMl => {
            (ep::CoreML::NAME, ep::CoreML::is_available(), "it is in the package onnxruntime for macOS")
        }
        Provider::DirectMl => {
            (ep::DirectML::NAME, ep::DirectML::is_available(), "it is in the package onnxruntime-directml for Windows")
        }
    };
    let (version, path) = (&library.version, library.path.display());
    match available {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!(
            "ONNX Runtime {version} at {path} has no {name}: {package}, or choose --device cpu or --engine native"
        )),
        Err(e) => Err(format!("ONNX Runtime {version} at {path} does not say whether it has {name}: {e}")),
    }
}

/// The provider to register; `None` for the CPU's, which every session has.
pub(crate) fn dispatch(provider: Provider) -> Option<ExecutionProviderDispatch> {
    let dispatch = match provider {
        Provider::Cpu => return None,
        Provider::Cuda(n) => ep::CUDA::default().with_device_id(i32::try_from(n).unwrap_or(i32::MAX)).build(),
        Provider::CoreMl => ep::CoreML::default().build(),
        Provider::DirectMl => ep::DirectML::default().build(),
    };
    Some(dispatch.error_on_failure())
}
