//! The host interface of the simulated device, besides running kernels: archives, memory, failures.

use std::ffi::c_void;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{env, fs};

use block2::RcBlock;
use metal_sim_sconce::{allocated, archived_pipelines, dispatches, fail_next, pipelines};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSString, NSURL};
use objc2_metal::*;

type Gpu = Retained<ProtocolObject<dyn MTLDevice>>;

/// The counters are per process: one test at a time.
fn device() -> (MutexGuard<'static, ()>, Gpu) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    (alone, MTLCreateSystemDefaultDevice().expect("the simulated Metal device"))
}

fn function(gpu: &Gpu, has_bias: bool) -> Retained<ProtocolObject<dyn MTLFunction>> {
    let sources = env::var("METAL_SIM_SOURCES").expect("source the env.sh that setup wrote");
    let text = fs::read_to_string(Path::new(&sources).join("layer_norm.metal")).expect("our own kernel");
    let library = gpu.newLibraryWithSource_options_error(&NSString::from_str(&text), None).expect("compiled by setup");
    let constants = MTLFunctionConstantValues::new();
    for (index, value) in [false, has_bias].iter().enumerate() {
        // SAFETY: the value is a bool, as the type says.
        unsafe { constants.setConstantValue_type_atIndex(NonNull::from(value).cast(), MTLDataType::Bool, index) };
    }
    library
        .newFunctionWithName_constantValues_error(&NSString::from_str("layer_norm_f32"), &constants)
        .expect("a kernel of the library")
}

fn pipeline_descriptor(gpu: &Gpu, has_bias: bool) -> Retained<MTLComputePipelineDescriptor> {
    let descriptor = MTLComputePipelineDescriptor::new();
    descriptor.setComputeFunction(Some(&function(gpu, has_bias)));
    descriptor
}

fn archive(gpu: &Gpu, path: Option<&Path>) -> Result<Retained<ProtocolObject<dyn MTLBinaryArchive>>, String> {
    let descriptor = MTLBinaryArchiveDescriptor::new();
    descriptor.setUrl(path.map(url).as_deref());
    gpu.newBinaryArchiveWithDescriptor_error(&descriptor).map_err(|e| e.localizedDescription().to_string())
}

fn url(path: &Path) -> Retained<NSURL> {
    NSURL::fileURLWithPath(&NSString::from_str(path.to_str().expect("a plain path")))
}

#[test]
fn archive_contains_only_the_added_pipelines() {
    let (_alone, gpu) = device();
    let path = Path::new(&env::var("METAL_SIM_WORK").unwrap()).join("archive.test");
    fs::write(&path, "not an archive").unwrap();
    assert!(archive(&gpu, Some(&path)).unwrap_err().contains("is no binary archive"));

    let empty = archive(&gpu, None).unwrap();
    empty.addComputePipelineFunctionsWithDescriptor_error(&pipeline_descriptor(&gpu, true)).unwrap();
    empty.serializeToURL_error(&url(&path)).unwrap();

    let read = archive(&gpu, Some(&path)).unwrap();
    let (made, archived) = (pipelines(), archived_pipelines());
    let pipeline = |has_bias: bool, options| {
        let descriptor = pipeline_descriptor(&gpu, has_bias);
        descriptor.setBinaryArchives(Some(&NSArray::from_retained_slice(&[read.clone()])));
        descriptor.setMaxTotalThreadsPerThreadgroup(256);
        gpu.newComputePipelineStateWithDescriptor_options_reflection_error(&descriptor, options, None)
    };
    let hit = pipeline(true, MTLPipelineOption::FailOnBinaryArchiveMiss).unwrap();
    assert_eq!(hit.maxTotalThreadsPerThreadgroup(), 256);
    let missed = pipeline(false, MTLPipelineOption::FailOnBinaryArchiveMiss).unwrap_err();
    assert!(missed.localizedDescription().to_string().contains("in none of the binary archives"));
    pipeline(false, MTLPipelineOption::empty()).unwrap();
    assert_eq!((pipelines() - made, archived_pipelines() - archived), (2, 1));
}

#[test]
fn allocated_bytes_count_live_buffers() {
    let (_alone, gpu) = device();
    let before = allocated();
    let buffer = gpu.newBufferWithLength_options(1000, MTLResourceOptions::StorageModeShared).unwrap();
    assert_eq!((allocated() - before, gpu.currentAllocatedSize() as u64), (1000, allocated()));
    assert_eq!(buffer.gpuAddress(), buffer.contents().as_ptr() as u64);
    drop(buffer);
    assert_eq!(allocated(), before);
}

#[test]
fn host_memory_buffers_are_not_copied_and_call_their_deallocator() {
    const PAGE: usize = 16384;
    static DEALLOCATED: AtomicUsize = AtomicUsize::new(0);
    let (_alone, gpu) = device();
    #[repr(align(16384))]
    struct Page([u8; PAGE]);
    let mut page = Box::new(Page([7; PAGE]));
    let pointer = NonNull::from(&mut page.0).cast::<c_void>();
    let deallocator = RcBlock::new(|_: NonNull<c_void>, length: usize| {
        DEALLOCATED.fetch_add(length, Ordering::Relaxed);
    });
    // SAFETY: the page outlives the buffer.
    let buffer = unsafe {
        let shared = MTLResourceOptions::StorageModeShared;
        gpu.newBufferWithBytesNoCopy_length_options_deallocator(pointer, PAGE, shared, Some(&deallocator))
    }
    .unwrap();
    assert_eq!(buffer.contents(), pointer);
    assert_eq!(DEALLOCATED.load(Ordering::Relaxed), 0);
    drop(buffer);
    assert_eq!(DEALLOCATED.load(Ordering::Relaxed), PAGE);
}

/// Runs `layer_norm` on one row of ones; returns the final status and the first result.
fn run(gpu: &Gpu) -> (MTLCommandBufferStatus, f32) {
    let (status, first, _) = run_with_length(gpu, 32);
    (status, first)
}

/// The same with a row length that may exceed the 32 elements; also returns the error.
fn run_with_length(gpu: &Gpu, length: usize) -> (MTLCommandBufferStatus, f32, String) {
    const N: usize = 32;
    let ones = [1f32; N];
    let args = [length as u32, 1, 0, 0, 0, 0, 1, 1e-5f32.to_bits()];
    let bytes = NonNull::from(&ones).cast();
    let shared = MTLResourceOptions::StorageModeShared;
    // SAFETY: each buffer is as long as the data it is made from, and the kernel stays within them.
    unsafe {
        let x = gpu.newBufferWithBytes_length_options(bytes, N * 4, shared).unwrap();
        let y = gpu.newBufferWithBytes_length_options(bytes, N * 4, shared).unwrap();
        let pipeline = gpu.newComputePipelineStateWithFunction_error(&function(gpu, true)).unwrap();
        let commands = gpu.newCommandQueue().unwrap().commandBuffer().unwrap();
        let encoder = commands.computeCommandEncoder().unwrap();
        encoder.setComputePipelineState(&pipeline);
        for index in 0..4 {
            encoder.setBuffer_offset_atIndex(Some(&x), 0, index);
        }
        encoder.setBuffer_offset_atIndex(Some(&y), 0, 4);
        encoder.setBytes_length_atIndex(NonNull::from(&args).cast(), size_of_val(&args), 5);
        let (groups, threads) = (MTLSize { width: 1, height: 1, depth: 1 }, MTLSize { width: 32, height: 1, depth: 1 });
        encoder.dispatchThreadgroups_threadsPerThreadgroup(groups, threads);
        encoder.endEncoding();
        commands.commit();
        commands.waitUntilCompleted();
        assert_eq!(commands.error().is_some(), commands.status() == MTLCommandBufferStatus::Error);
        let error = commands.error().map_or(String::new(), |e| e.localizedDescription().to_string());
        (commands.status(), y.contents().cast::<f32>().as_ptr().read() - 1.0, error) // less the bias
    }
}

#[test]
fn fail_next_fails_one_command_buffer() {
    let (_alone, gpu) = device();
    assert_eq!(run(&gpu), (MTLCommandBufferStatus::Completed, 0.0));
    let before = dispatches("layer_norm_f32");
    fail_next("layer_norm_f32");
    assert_eq!(run(&gpu).0, MTLCommandBufferStatus::Error);
    assert_eq!(dispatches("layer_norm_f32"), before, "the failed kernel must not run");
    assert_eq!(run(&gpu), (MTLCommandBufferStatus::Completed, 0.0));
}

/// Our kernels are compiled for the checked mode if that is requested: only it detects a single
/// element too many.
#[test]
fn checked_mode_is_active_when_requested() {
    let (_alone, gpu) = device();
    if env::var("METAL_SIM_CHECK").is_ok_and(|on| on != "0") {
        let (status, _, error) = run_with_length(&gpu, 33);
        assert_eq!(status, MTLCommandBufferStatus::Error);
        assert!(
            error.contains("layer_norm_f32: out of bounds: thread 0") && error.contains("which has 128"),
            "{error}"
        );
    }
}

/// A run leaks nothing, and autoreleased objects are freed with their pool.
#[test]
fn memory_stays_flat_over_many_runs() {
    let (_alone, gpu) = device();
    let before = allocated();
    for _ in 0..10 {
        autoreleasepool(|_| run(&gpu));
        assert_eq!(allocated(), before);
    }
}
