//! `Sconce::Native::Array`: the arrays behind `Sconce::Tensor`.

use crate::convert::{Text, device, numbers};
use crate::error::{argument, failure};
use crate::guard::{function, method};
use crate::{fork, gvl};
use magnus::{Class, Error, Module, Object, RArray, RModule, Ruby};
use sconce_engine::{DType, Device, RequestContext};
use sconce_ops::eager::{Array, Binary, EagerDevice, Reduction, Unary};
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Operations on more elements than this run on another thread, without the Ruby VM lock; starting
/// one takes as long as an operation on fewer.
const FEW_ELEMENTS: usize = 1 << 15;

/// The devices that arrays are on, opened at their first use. Locked with the Ruby VM lock held, so
/// that it is free in a forked process.
static OPEN: Mutex<BTreeMap<Device, Arc<EagerDevice>>> = Mutex::new(BTreeMap::new());

fn open_devices() -> MutexGuard<'static, BTreeMap<Device, Arc<EagerDevice>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn on(ruby: &Ruby, name: &str) -> Result<Arc<EagerDevice>, Error> {
    let device = device(ruby, name)?;
    fork::check_device(ruby, device)?;
    if let Some(found) = open_devices().get(&device) {
        return Ok(found.clone());
    }
    // Another thread may do the same: the first counts.
    let opened = gvl::run(ruby, &RequestContext::default(), move || EagerDevice::open(device))?;
    Ok(open_devices().entry(device).or_insert(opened).clone())
}

/// Forgets the GPUs of the parent, without closing them: they are not this process's.
pub(crate) fn forget_gpus() {
    let mut open = open_devices();
    let gpus: Vec<Device> = open.keys().copied().filter(|device| device.is_gpu()).collect();
    for gpu in gpus {
        std::mem::forget(open.remove(&gpu));
    }
}

/// An operation with its device, dtype and rung, and how often it ran.
type Count = (&'static str, String, String, String, u64);

/// The operations on arrays that ran so far, as `["matmul", "cpu", "f32", "composed", 3]`.
pub(crate) fn counts(_: &Ruby) -> Result<Vec<Count>, Error> {
    fork::check();
    let open = open_devices();
    let all = open.values().flat_map(|on| on.ladder().counts());
    Ok(all.map(|(c, n)| (c.op, c.device.to_string(), c.dtype.to_string(), c.rung.to_string(), n)).collect())
}

fn dtype(ruby: &Ruby, name: &str) -> Result<DType, Error> {
    let all = [DType::U8, DType::U32, DType::I64, DType::BF16, DType::F16, DType::F32, DType::F64];
    let found = all.into_iter().find(|dtype| dtype.to_string() == name);
    found.ok_or_else(|| argument(ruby, format!("unknown dtype {name}; one of u8, u32, i64, bf16, f16, f32, f64")))
}

#[magnus::wrap(class = "Sconce::Native::Array", free_immediately)]
pub(crate) struct NativeArray {
    array: ManuallyDrop<Array>,
    process: u32,
}

impl NativeArray {
    pub(crate) fn new(array: Array) -> NativeArray {
        let bytes = if array.is_contiguous() { array.len() * array.dtype().size() } else { 0 };
        collect_before(bytes);
        NativeArray { array: ManuallyDrop::new(array), process: std::process::id() }
    }

    /// From the results of a model, on the CPU.
    pub(crate) fn from_f32(ruby: &Ruby, values: Vec<f32>, dims: &[usize]) -> Result<NativeArray, Error> {
        let on = on(ruby, "cpu")?;
        Array::from_f32(values, dims, &on).map(NativeArray::new).map_err(|e| failure(ruby, e))
    }

    /// The array, unless it is on a GPU of another process.
    fn get(&self, ruby: &Ruby) -> Result<Array, Error> {
        if self.is_lost() {
            let device = self.array.on().device();
            return Err(failure(
                ruby,
                format!(
                    "this tensor was made on {device} before a fork, and the child cannot use its parent's GPU: \
                     copy it with to_device(\"cpu\") before the fork"
                ),
            ));
        }
        Ok(Array::clone(&self.array))
    }

    /// Whether it is on a GPU, and of the process that forked this one.
    fn is_lost(&self) -> bool {
        self.process != std::process::id() && self.array.on().device().is_gpu()
    }
}

impl Drop for NativeArray {
    fn drop(&mut self) {
        // A forked process must not free the parent's memory on a GPU.
        if !self.is_lost() {
            // SAFETY: nothing uses the array after this.
            #[allow(unsafe_code, reason = "the array is dropped by hand")]
            unsafe {
                ManuallyDrop::drop(&mut self.array);
            }
        }
    }
}

/// Runs the garbage collector each time that `MOST_UNCOLLECTED` bytes of arrays were made. Ruby
/// sees an array as a few words, and by itself would collect only after arrays had filled the
/// memory.
fn collect_before(bytes: usize) {
    const MOST_UNCOLLECTED: usize = 128 << 20;
    static UNCOLLECTED: AtomicUsize = AtomicUsize::new(0);
    if UNCOLLECTED.fetch_add(bytes, Relaxed).saturating_add(bytes) > MOST_UNCOLLECTED {
        UNCOLLECTED.store(bytes, Relaxed);
        // SAFETY: arrays are wrapped with the lock held.
        #[allow(unsafe_code, reason = "a C function")]
        unsafe {
            rb_sys::rb_gc_start();
        }
    }
}

type Outcome = Result<NativeArray, Error>;

/// Runs an operation; a large one on another thread, where it finishes even if the wait for it is
/// interrupted.
fn compute(ruby: &Ruby, elements: usize, f: impl FnOnce() -> sconce_ops::Result<Array> + Send + 'static) -> Outcome {
    let result = match elements > FEW_ELEMENTS {
        true => gvl::run(ruby, &RequestContext::default(), f)?,
        false => {
            fork::check();
            f().map_err(|e| failure(ruby, e))?
        }
    };
    Ok(NativeArray::new(result))
}

fn from_values(ruby: &Ruby, values: RArray, dims: RArray, dtype_name: Text, device: Text) -> Outcome {
    let (values, dims) = (numbers::<f64>(values)?, numbers::<usize>(dims)?);
    let (dtype, on) = (dtype(ruby, &dtype_name)?, on(ruby, &device)?);
    compute(ruby, values.len(), move || Array::from_f64(&values, &dims, dtype, &on))
}

/// `kind` is `zeros`, `ones`, `rand` or `randn`.
fn create(ruby: &Ruby, kind: Text, dims: RArray, device: Text) -> Outcome {
    let (dims, on) = (numbers::<usize>(dims)?, on(ruby, &device)?);
    let elements = dims.iter().fold(1usize, |n, d| n.saturating_mul(*d));
    compute(ruby, elements, move || match &*kind {
        "ones" => Array::full(1.0, &dims, DType::F32, &on),
        "rand" => Array::rand(&dims, &on),
        "randn" => Array::randn(&dims, &on),
        _ => Array::full(0.0, &dims, DType::F32, &on),
    })
}

fn unary(ruby: &Ruby, this: &NativeArray, name: Text, power: f64) -> Outcome {
    let function = match &*name {
        "sin" => Unary::Sin,
        "cos" => Unary::Cos,
        "log" => Unary::Log,
        "sqr" => Unary::Sqr,
        "sqrt" => Unary::Sqrt,
        "recip" => Unary::Recip,
        "exp" => Unary::Exp,
        "powf" => Unary::Pow(power),
        _ => return Err(argument(ruby, format!("no function {}", &*name))),
    };
    let a = this.get(ruby)?;
    compute(ruby, a.len(), move || a.unary(function))
}

fn binary_named(ruby: &Ruby, name: &str) -> Result<Binary, Error> {
    match name {
        "add" => Ok(Binary::Add),
        "sub" => Ok(Binary::Sub),
        "mul" => Ok(Binary::Mul),
        "div" => Ok(Binary::Div),
        _ => Err(argument(ruby, format!("no operation {name}"))),
    }
}

fn binary(ruby: &Ruby, this: &NativeArray, name: Text, other: &NativeArray) -> Outcome {
    let with = binary_named(ruby, &name)?;
    let (a, b) = (this.get(ruby)?, other.get(ruby)?);
    compute(ruby, a.len(), move || a.binary(with, &b))
}

fn broadcast(ruby: &Ruby, this: &NativeArray, name: Text, other: &NativeArray) -> Outcome {
    let with = binary_named(ruby, &name)?;
    let (a, b) = (this.get(ruby)?, other.get(ruby)?);
    compute(ruby, a.len().saturating_mul(b.len()), move || a.broadcast(with, &b))
}

fn scalar(ruby: &Ruby, this: &NativeArray, name: Text, number: f64) -> Outcome {
    let with = binary_named(ruby, &name)?;
    let a = this.get(ruby)?;
    compute(ruby, a.len(), move || a.scalar(with, number))
}

fn matmul(ruby: &Ruby, this: &NativeArray, other: &NativeArray) -> Outcome {
    let (a, b) = (this.get(ruby)?, other.get(ruby)?);
    let products = a.len().saturating_mul(b.dims().last().copied().unwrap_or(1));
    compute(ruby, products, move || a.matmul(&b))
}

fn where_cond(ruby: &Ruby, this: &NativeArray, a: &NativeArray, b: &NativeArray) -> Outcome {
    let (condition, a, b) = (this.get(ruby)?, a.get(ruby)?, b.get(ruby)?);
    compute(ruby, condition.len(), move || condition.where_cond(&a, &b))
}

fn index_select(ruby: &Ruby, this: &NativeArray, indices: &NativeArray, axis: usize) -> Outcome {
    let (a, indices) = (this.get(ruby)?, indices.get(ruby)?);
    compute(ruby, a.len().saturating_mul(indices.len()), move || a.index_select(&indices, axis))
}

fn reduction(ruby: &Ruby, name: &str) -> Result<Reduction, Error> {
    match name {
        "sum" => Ok(Reduction::Sum),
        "mean" => Ok(Reduction::Mean),
        "max" => Ok(Reduction::Max),
        "min" => Ok(Reduction::Min),
        "argmax" => Ok(Reduction::ArgMax),
        "argmin" => Ok(Reduction::ArgMin),
        _ => Err(argument(ruby, format!("no reduction {name}"))),
    }
}

fn reduce(ruby: &Ruby, this: &NativeArray, name: Text, axis: usize, keep: bool) -> Outcome {
    let (a, reduction) = (this.get(ruby)?, reduction(ruby, &name)?);
    compute(ruby, a.len(), move || a.reduce(reduction, axis, keep))
}

fn reduce_all(ruby: &Ruby, this: &NativeArray, name: Text) -> Outcome {
    let (a, reduction) = (this.get(ruby)?, reduction(ruby, &name)?);
    compute(ruby, a.len(), move || a.reduce_all(reduction))
}

/// The views that compute nothing, whatever their size.
const VIEWS: [&str; 8] = ["broadcast_as", "broadcast_left", "squeeze", "unsqueeze", "get", "transpose", "t", "narrow"];

/// A view or a copy: `name` with up to three numbers.
fn shape(ruby: &Ruby, this: &NativeArray, name: Text, numbers_: RArray) -> Outcome {
    let (a, n) = (this.get(ruby)?, numbers::<usize>(numbers_)?);
    let at = |i: usize| n.get(i).copied().unwrap_or_default();
    let (first, second, third) = (at(0), at(1), at(2));
    let last = a.dims().len().saturating_sub(1);
    let copied = if VIEWS.contains(&&*name) { 0 } else { a.len() };
    compute(ruby, copied, move || match &*name {
        "reshape" => a.reshape(&n),
        "broadcast_as" => a.broadcast_as(&n),
        "broadcast_left" => a.broadcast_left(&n),
        "squeeze" => a.squeeze(first),
        "unsqueeze" => a.unsqueeze(first),
        "get" => a.get(first),
        "transpose" => a.transpose(first, second),
        "t" => a.t(),
        "narrow" => a.narrow(first, second, third),
        "flatten_from" => a.flatten(first, last),
        "flatten_to" => a.flatten(0, first),
        "flatten_all" => a.reshape(&[a.len()]),
        "contiguous" => a.contiguous(),
        "copy" => a.copy(),
        _ => Ok(a),
    })
}

fn to_dtype(ruby: &Ruby, this: &NativeArray, name: Text) -> Outcome {
    let (a, dtype) = (this.get(ruby)?, dtype(ruby, &name)?);
    compute(ruby, a.len(), move || a.to_dtype(dtype))
}

fn to_device(ruby: &Ruby, this: &NativeArray, name: Text) -> Outcome {
    let (a, on) = (this.get(ruby)?, on(ruby, &name)?);
    compute(ruby, a.len(), move || a.to_device(&on))
}

fn values(ruby: &Ruby, this: &NativeArray) -> Result<Vec<f64>, Error> {
    let a = this.get(ruby)?;
    // A GPU first finishes the operations that it was given.
    match a.len() > FEW_ELEMENTS || a.on().device().is_gpu() {
        true => gvl::run(ruby, &RequestContext::default(), move || a.to_f64()),
        false => a.to_f64().map_err(|e| failure(ruby, e)),
    }
}

fn dims(_: &Ruby, this: &NativeArray) -> Result<Vec<usize>, Error> {
    Ok(this.array.dims().to_vec())
}

fn strides(_: &Ruby, this: &NativeArray) -> Result<Vec<usize>, Error> {
    Ok(this.array.strides().to_vec())
}

fn dtype_name(_: &Ruby, this: &NativeArray) -> Result<String, Error> {
    Ok(this.array.dtype().to_string())
}

fn device_name(_: &Ruby, this: &NativeArray) -> Result<String, Error> {
    Ok(this.array.on().device().to_string())
}

fn is_contiguous(_: &Ruby, this: &NativeArray) -> Result<bool, Error> {
    Ok(this.array.is_contiguous())
}

fn is_fortran_contiguous(_: &Ruby, this: &NativeArray) -> Result<bool, Error> {
    Ok(this.array.is_fortran_contiguous())
}

pub(crate) fn define(ruby: &Ruby, native: RModule) -> Result<(), Error> {
    let class = native.define_class("Array", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_singleton_method("from_values", function!(from_values, 4))?;
    class.define_singleton_method("create", function!(create, 3))?;
    class.define_method("unary", method!(unary, 2))?;
    class.define_method("binary", method!(binary, 2))?;
    class.define_method("broadcast", method!(broadcast, 2))?;
    class.define_method("scalar", method!(scalar, 2))?;
    class.define_method("matmul", method!(matmul, 1))?;
    class.define_method("where_cond", method!(where_cond, 2))?;
    class.define_method("index_select", method!(index_select, 2))?;
    class.define_method("reduce", method!(reduce, 3))?;
    class.define_method("reduce_all", method!(reduce_all, 1))?;
    class.define_method("shape", method!(shape, 2))?;
    class.define_method("to_dtype", method!(to_dtype, 1))?;
    class.define_method("to_device", method!(to_device, 1))?;
    class.define_method("values", method!(values, 0))?;
    class.define_method("dims", method!(dims, 0))?;
    class.define_method("strides", method!(strides, 0))?;
    class.define_method("dtype", method!(dtype_name, 0))?;
    class.define_method("device", method!(device_name, 0))?;
    class.define_method("contiguous?", method!(is_contiguous, 0))?;
    class.define_method("fortran_contiguous?", method!(is_fortran_contiguous, 0))
}
