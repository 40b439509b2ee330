//! Loads the CUDA driver's functions when the process starts.
//!
//! Candle links libcuda. Without that library the loader would not start the program at all, not
//! even `--help` or `--device cpu`, and would not mention drivers. So this file defines the
//! functions of libcuda, and the binary does not need the library. The functions forward every call
//! to libcuda if the machine has it, and otherwise return `CUDA_ERROR_STUB_LIBRARY`, as the
//! toolkit's stub library does.
//!
//! If a function is missing below, the binary needs libcuda again, which `readelf -d` shows;
//! nothing worse happens.
#![allow(unsafe_code, reason = "symbols of a C library, and jumps to them")]

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

const LIBRARY: &CStr = c"libcuda.so.1";

/// The library's own symbols are resolved when it is loaded.
const RTLD_NOW: c_int = 2;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($place:path) => {
        naked_asm!("jmp qword ptr [rip + {place}]", place = sym $place)
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($place:path) => {
        naked_asm!("adrp x16, {place}", "ldr x16, [x16, :lo12:{place}]", "br x16", place = sym $place)
    };
}

macro_rules! functions {
    ($($name:ident)*) => {
        /// The address of each function.
        #[allow(non_upper_case_globals, reason = "the library's names")]
        mod places {
            use super::*;
            $(pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(is_missing as *mut c_void);)*
        }

        static PLACES: &[(&str, &AtomicPtr<c_void>)] = &[$((concat!(stringify!($name), "\0"), &places::$name)),*];

        $(
            // The jump leaves all arguments in place. SAFETY: no other function of the process has
            // this name, and the library's is looked up in the library only.
            #[allow(non_snake_case, reason = "the library's names")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            extern "C" fn $name() {
                jump!(places::$name);
            }
        )*
    };
}

functions! {
    cuCtxCreate_v3 cuCtxCreate_v4 cuCtxDestroy_v2 cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetLimit cuCtxGetStreamPriorityRange
    cuCtxSetCacheConfig cuCtxSetCurrent cuCtxSetFlags cuCtxSetLimit cuCtxSynchronize cuDestroyExternalMemory cuDeviceGet
    cuDeviceGetAttribute cuDeviceGetCount cuDeviceGetDefaultMemPool cuDeviceGetMemPool cuDeviceGetName cuDeviceGetUuid
    cuDeviceGetUuid_v2 cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRetain cuDeviceSetMemPool cuDeviceTotalMem_v2 cuEventCreate
    cuEventDestroy_v2 cuEventElapsedTime cuEventElapsedTime_v2 cuEventQuery cuEventRecord cuEventSynchronize
    cuExternalMemoryGetMappedBuffer cuFuncGetAttribute cuFuncSetAttribute cuFuncSetCacheConfig cuGetErrorName cuGetErrorString
    cuGraphClone cuGraphDestroy cuGraphExecDestroy cuGraphInstantiate cuGraphInstantiateWithFlags cuGraphLaunch cuGraphUpload
    cuImportExternalMemory cuInit cuLaunchCooperativeKernel cuLaunchHostFunc cuLaunchKernel cuLaunchKernelEx cuMemAdvise_v2
    cuMemAllocAsync cuMemAllocFromPoolAsync cuMemAllocManaged cuMemAlloc_v2 cuMemFreeAsync cuMemFreeHost cuMemFree_v2
    cuMemGetInfo_v2 cuMemHostAlloc cuMemPoolCreate cuMemPoolDestroy cuMemPoolGetAttribute cuMemPoolSetAttribute cuMemPoolTrimTo
    cuMemPrefetchAsync_v2 cuMemcpyDtoDAsync_v2 cuMemcpyDtoD_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoH_v2 cuMemcpyHtoDAsync_v2
    cuMemcpyHtoD_v2 cuMemcpyPeerAsync cuMemsetD8Async cuMemsetD8_v2 cuModuleGetFunction cuModuleGetGlobal_v2 cuModuleLoad
    cuModuleLoadData cuModuleUnload cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxActiveClusters cuOccupancyMaxPotentialBlockSize
    cuOccupancyMaxPotentialBlockSizeWithFlags cuOccupancyMaxPotentialClusterSize cuProfilerStart cuProfilerStop
    cuStreamAttachMemAsync cuStreamBeginCapture_v2 cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamEndCapture
    cuStreamIsCapturing cuStreamSynchronize cuStreamWaitEvent cuTensorMapEncodeTiled
}

extern "C" fn is_missing() -> c_int {
    34 // CUDA_ERROR_STUB_LIBRARY
}

/// Runs before main, when the loader would have loaded libcuda, so that the functions are there for
/// all code that opens a device.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = find;

extern "C" fn find() {
    // SAFETY: a NUL-terminated name; what runs when libcuda is loaded is the driver's.
    let library = unsafe { dlopen(LIBRARY.as_ptr(), RTLD_NOW) };
    if library.is_null() {
        return;
    }
    for (name, place) in PLACES {
        // SAFETY: the library is never closed, and the name is NUL-terminated.
        let found = unsafe { dlsym(library, name.as_ptr().cast()) };
        if !found.is_null() {
            place.store(found, Ordering::Relaxed);
        }
    }
}
