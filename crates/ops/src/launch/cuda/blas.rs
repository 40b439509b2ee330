//! Matrix products by cuBLASLt, summed in f32.
//!
//! The algorithm that cuBLASLt's heuristic chooses for a shape is cached. Our matrices are
//! row-major, cuBLASLt's column-major: it computes Yᵀ = W · Xᵀ, whose columns are our rows.
#![allow(unsafe_code, reason = "cuBLASLt is C")]

use super::buffers::DeviceBuffer;
use super::view::View;
use crate::launch::BLAS_WORKSPACE as WORKSPACE;
use crate::{DType, Error, Result};
use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::cublaslt::result as lt;
use candle_core::cuda_backend::cudarc::cublaslt::result::CublasError;
use candle_core::cuda_backend::cudarc::cublaslt::sys;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// `CUBLAS_OP_T`.
const TRANSPOSED: i32 = 1;

/// Most shapes in the cache of algorithms. Batches of any length keep adding shapes.
const MAX_CACHED: usize = 4096;

/// y = x · Wᵀ + bias.
pub(crate) struct Product<'a> {
    /// Rows of k elements: see [`crate::launch::strided::Strided::rows`].
    pub(crate) x: &'a View,
    /// `[n, k]`.
    pub(crate) w: &'a View,
    /// `[n]`; the part for this product begins at `first`.
    pub(crate) bias: Option<&'a View>,
    /// In the dtype of x, or in f32 if there is no bias.
    pub(crate) y: (&'a DeviceBuffer, DType),
    /// Columns of y, and the column of y where this product begins.
    pub(crate) width: usize,
    pub(crate) first: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    gpu: usize,
    dtype: DType,
    rows: usize,
    n: usize,
    k: usize,
    /// Row strides of x and of y, in elements.
    steps: [usize; 2],
    /// The dtype of y.
    y_dtype: DType,
    has_bias: bool,
    /// Alignment of W, x and y, in bytes.
    alignments: [u32; 3],
}

struct Algorithm {
    descriptor: sys::cublasLtMatmulDesc_t,
    /// Of W, x and y.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

impl Drop for Algorithm {
    fn drop(&mut self) {
        // SAFETY: made by `find_algorithm`, and destroyed once. A failure to free cannot be
        // handled.
        unsafe {
            let _ = lt::destroy_matmul_desc(self.descriptor);
            for layout in self.layouts {
                let _ = lt::destroy_matrix_layout(layout);
            }
        }
    }
}

#[derive(Default)]
struct Library {
    /// By GPU.
    handles: HashMap<usize, sys::cublasLtHandle_t>,
    algorithms: HashMap<Key, Algorithm>,
}

// SAFETY: handles and descriptors are plain memory of the library, used by one thread at a time
// under the lock.
unsafe impl Send for Library {}

pub(crate) fn multiply(p: &Product<'_>) -> Result<()> {
    static LIBRARY: Mutex<Option<Library>> = Mutex::new(None);
    let (x, w, dtype) = (p.x.rows()?, p.w.rows()?, p.x.dtype());
    let size = dtype.size();
    let (y, y_dtype) = p.y;
    let addresses = [p.w.address, p.x.address, y.address + (p.first * y_dtype.size()) as u64];
    let stream = p.x.device.cuda_stream();
    let context = stream.context();
    context.bind_to_thread().map_err(|e| Error::call("cuda", super::describe(e)))?;
    let key = Key {
        gpu: context.ordinal(),
        dtype,
        rows: x.rows,
        n: w.rows,
        k: x.cols,
        steps: [x.stride, p.width],
        y_dtype,
        has_bias: p.bias.is_some(),
        alignments: addresses.map(|address| 1 << address.trailing_zeros().min(8)),
    };
    let fail = |e: CublasError| {
        Error::call("linear", format!("cuBLASLt: {:?} for {} × {} × {} in {dtype}", e.0, x.rows, w.rows, x.cols))
    };
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    let Library { handles, algorithms } = library.get_or_insert_default();
    let handle = match handles.get(&key.gpu) {
        Some(handle) => *handle,
        None => *handles.entry(key.gpu).or_insert(lt::create_handle().map_err(fail)?),
    };
    if algorithms.len() >= MAX_CACHED {
        algorithms.clear();
    }
    let cached = match algorithms.entry(key) {
        Entry::Occupied(known) => &*known.into_mut(),
        // SAFETY: the handle is live.
        Entry::Vacant(new) => &*new.insert(unsafe { find_algorithm(handle, &key, w.stride) }.map_err(fail)?),
    };
    let workspace = workspace(&p.x.device, cached.workspace)?;
    let (one, zero) = (1f32, 0f32);
    let pointer = |address: u64| address as *const c_void;
    // SAFETY: the shapes are those of the matrices at the addresses, which live until the launch
    // has been made; see `View`.
    unsafe {
        if let Some(bias) = p.bias {
            let address = bias.address + (p.first * size) as u64;
            set(cached.descriptor, sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &address)
                .map_err(fail)?;
        }
        let [a, b, d] = cached.layouts;
        lt::matmul(
            handle,
            cached.descriptor,
            std::ptr::from_ref(&one).cast(),
            std::ptr::from_ref(&zero).cast(),
            pointer(addresses[0]),
            a,
            pointer(addresses[1]),
            b,
            pointer(addresses[2]),
            d,
            addresses[2] as *mut c_void,
            d,
            &raw const cached.algorithm,
            workspace.as_ref().map_or(std::ptr::null_mut(), |buffer| buffer.address as *mut c_void),
            cached.workspace,
            stream.cu_stream().cast(),
        )
        .map_err(fail)
    }
}

fn workspace(device: &CudaDevice, bytes: usize) -> Result<Option<DeviceBuffer>> {
    (bytes > 0).then(|| DeviceBuffer::new(device, WORKSPACE, DType::U8)).transpose()
}

/// # Safety
/// The handle is live.
unsafe fn find_algorithm(
    handle: sys::cublasLtHandle_t,
    key: &Key,
    w_step: usize,
) -> std::result::Result<Algorithm, CublasError> {
    use sys::cublasLtMatmulDescAttributes_t as Of;
    use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
    let element = |dtype: DType| match dtype {
        DType::F16 => sys::cudaDataType_t::CUDA_R_16F,
        DType::BF16 => sys::cudaDataType_t::CUDA_R_16BF,
        _ => sys::cudaDataType_t::CUDA_R_32F,
    };
    let descriptor =
        lt::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F)?;
    let layout = |dtype: DType, rows: usize, columns: usize, step: usize| {
        lt::create_matrix_layout(element(dtype), rows as u64, columns as u64, step as i64)
    };
    let Key { n, k, rows, steps: [x, y], dtype, y_dtype, .. } = *key;
    let layouts = [layout(dtype, k, n, w_step)?, layout(dtype, k, rows, x)?, layout(y_dtype, n, rows, y)?];
    // SAFETY: the descriptors were just made; every attribute is passed in its type.
    unsafe {
        set(descriptor, Of::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        if key.has_bias {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as i32;
            set(descriptor, Of::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        }
        let preference = lt::create_matmul_pref()?;
        let prefer =
            |attribute, value: *const c_void, size| lt::set_matmul_pref_attribute(preference, attribute, value, size);
        prefer(
            Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            std::ptr::from_ref(&WORKSPACE).cast(),
            size_of::<usize>(),
        )?;
        let aligned = [
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        // y also stands for C, which is not read.
        let [of_w, of_x, of_y] = &key.alignments;
        for (attribute, alignment) in aligned.into_iter().zip([of_w, of_x, of_y, of_y]) {
            prefer(attribute, std::ptr::from_ref(alignment).cast(), size_of::<u32>())?;
        }
        let [a, b, d] = layouts;
        let heuristic = lt::get_matmul_algo_heuristic(handle, descriptor, a, b, d, d, preference);
        lt::destroy_matmul_pref(preference)?;
        let heuristic = heuristic?;
        Ok(Algorithm { descriptor, layouts, algorithm: heuristic.algo, workspace: heuristic.workspaceSize })
    }
}

/// # Safety
/// The attribute has the type of the value.
unsafe fn set<T>(
    descriptor: sys::cublasLtMatmulDesc_t,
    attribute: sys::cublasLtMatmulDescAttributes_t,
    value: &T,
) -> std::result::Result<(), CublasError> {
    // SAFETY: the caller's.
    unsafe { lt::set_matmul_desc_attribute(descriptor, attribute, std::ptr::from_ref(value).cast(), size_of::<T>()) }
}
