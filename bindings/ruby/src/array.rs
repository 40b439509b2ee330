//! `Sconce::Native::Array`: the arrays behind `Sconce::Tensor`.

use crate::convert::{device, numbers};
use crate::error::{argument, failure};
use crate::{fork, gvl};
use magnus::{Class, Error, Module, Object, RArray, RModule, Ruby, function, method};
use sconce_engine::{DType, Device};
use sconce_ops::eager::{Array, Binary, EagerDevice, Reduction, Unary};
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Operations on more elements than this run without the lock; releasing it takes as long as an
/// operation on fewer.
const FEW_ELEMENTS: usize = 1 << 14;

/// The devices that arrays are on, opened at their first use.
static OPEN: Mutex<BTreeMap<Device, Arc<EagerDevice>>> = Mutex::new(BTreeMap::new());

fn on(ruby: &Ruby, name: &str) -> Result<Arc<EagerDevice>, Error> {
    fork::check();
    let device = device(ruby, name)?;
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = open.get(&device) {
        return Ok(found.clone());
    }
    let opened = EagerDevice::open(device).map_err(|e| failure(ruby, e))?;
    Ok(open.entry(device).or_insert(opened).clone())
}

/// The operations on arrays that ran so far, as `["matmul", "cpu", "f32", "composed", 3]`.
pub(crate) fn counts() -> Vec<(&'static str, String, String, String, u64)> {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let all = open.values().flat_map(|on| on.ladder().counts());
    all.map(|(c, n)| (c.op, c.device.to_string(), c.dtype.to_string(), c.rung.to_string(), n)).collect()
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
}

impl Drop for NativeArray {
    fn drop(&mut self) {
        // A forked process must not free the parent's memory on a GPU.
        if self.process == std::process::id() {
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

/// Runs an operation, without the lock if it is a large one.
fn compute(ruby: &Ruby, elements: usize, f: impl FnOnce() -> sconce_ops::Result<Array> + Send) -> Outcome {
    fork::check();
    let result = if elements > FEW_ELEMENTS { gvl::release(f) } else { f() };
    result.map(NativeArray::new).map_err(|e| failure(ruby, e))
}

fn from_values(ruby: &Ruby, values: RArray, dims: RArray, dtype_name: String, device: String) -> Outcome {
    let (values, dims) = (numbers::<f64>(values)?, numbers::<usize>(dims)?);
    let (dtype, on) = (dtype(ruby, &dtype_name)?, on(ruby, &device)?);
    compute(ruby, values.len(), || Array::from_f64(&values, &dims, dtype, &on))
}

/// `kind` is `zeros`, `ones`, `rand` or `randn`.
fn create(ruby: &Ruby, kind: String, dims: RArray, device: String) -> Outcome {
    let (dims, on) = (numbers::<usize>(dims)?, on(ruby, &device)?);
    let elements = dims.iter().fold(1usize, |n, d| n.saturating_mul(*d));
    let make = || match &*kind {
        "ones" => Array::full(1.0, &dims, DType::F32, &on),
        "rand" => Array::rand(&dims, &on),
        "randn" => Array::randn(&dims, &on),
        _ => Array::full(0.0, &dims, DType::F32, &on),
    };
    compute(ruby, elements, make)
}

fn unary(ruby: &Ruby, this: &NativeArray, name: String, power: f64) -> Outcome {
    let function = match &*name {
        "sin" => Unary::Sin,
        "cos" => Unary::Cos,
        "log" => Unary::Log,
        "sqr" => Unary::Sqr,
        "sqrt" => Unary::Sqrt,
        "recip" => Unary::Recip,
        "exp" => Unary::Exp,
        "powf" => Unary::Pow(power),
        _ => return Err(argument(ruby, format!("no function {name}"))),
    };
    compute(ruby, this.array.len(), || this.array.unary(function))
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

fn binary(ruby: &Ruby, this: &NativeArray, name: String, other: &NativeArray) -> Outcome {
    let with = binary_named(ruby, &name)?;
    compute(ruby, this.array.len(), || this.array.binary(with, &other.array))
}

fn broadcast(ruby: &Ruby, this: &NativeArray, name: String, other: &NativeArray) -> Outcome {
    let with = binary_named(ruby, &name)?;
    compute(ruby, this.array.len().saturating_mul(other.array.len()), || this.array.broadcast(with, &other.array))
}

fn scalar(ruby: &Ruby, this: &NativeArray, name: String, number: f64) -> Outcome {
    let with = binary_named(ruby, &name)?;
    compute(ruby, this.array.len(), || this.array.scalar(with, number))
}

fn matmul(ruby: &Ruby, this: &NativeArray, other: &NativeArray) -> Outcome {
    compute(ruby, this.array.len().saturating_mul(other.array.len()), || this.array.matmul(&other.array))
}

fn where_cond(ruby: &Ruby, this: &NativeArray, a: &NativeArray, b: &NativeArray) -> Outcome {
    compute(ruby, this.array.len(), || this.array.where_cond(&a.array, &b.array))
}

fn index_select(ruby: &Ruby, this: &NativeArray, indices: &NativeArray, axis: usize) -> Outcome {
    compute(ruby, this.array.len(), || this.array.index_select(&indices.array, axis))
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

fn reduce(ruby: &Ruby, this: &NativeArray, name: String, axis: usize, keep: bool) -> Outcome {
    let reduction = reduction(ruby, &name)?;
    compute(ruby, this.array.len(), || this.array.reduce(reduction, axis, keep))
}

fn reduce_all(ruby: &Ruby, this: &NativeArray, name: String) -> Outcome {
    let reduction = reduction(ruby, &name)?;
    compute(ruby, this.array.len(), || this.array.reduce_all(reduction))
}

/// A view or a copy: `name` with up to three numbers.
fn shape(ruby: &Ruby, this: &NativeArray, name: String, numbers_: RArray) -> Outcome {
    let n = numbers::<usize>(numbers_)?;
    let a = &this.array;
    let at = |i: usize| n.get(i).copied().unwrap_or_default();
    let last = a.dims().len().saturating_sub(1);
    compute(ruby, a.len(), || match &*name {
        "reshape" => a.reshape(&n),
        "broadcast_as" => a.broadcast_as(&n),
        "broadcast_left" => a.broadcast_left(&n),
        "squeeze" => a.squeeze(at(0)),
        "unsqueeze" => a.unsqueeze(at(0)),
        "get" => a.get(at(0)),
        "transpose" => a.transpose(at(0), at(1)),
        "t" => a.t(),
        "narrow" => a.narrow(at(0), at(1), at(2)),
        "flatten_from" => a.flatten(at(0), last),
        "flatten_to" => a.flatten(0, at(0)),
        "flatten_all" => a.reshape(&[a.len()]),
        "contiguous" => a.contiguous(),
        "copy" => a.copy(),
        _ => Ok(Array::clone(a)),
    })
}

fn to_dtype(ruby: &Ruby, this: &NativeArray, name: String) -> Outcome {
    let dtype = dtype(ruby, &name)?;
    compute(ruby, this.array.len(), || this.array.to_dtype(dtype))
}

fn to_device(ruby: &Ruby, this: &NativeArray, name: String) -> Outcome {
    let on = on(ruby, &name)?;
    compute(ruby, this.array.len(), || this.array.to_device(&on))
}

fn values(ruby: &Ruby, this: &NativeArray) -> Result<Vec<f64>, Error> {
    fork::check();
    this.array.to_f64().map_err(|e| failure(ruby, e))
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
    class.define_method("dims", method!(|a: &NativeArray| a.array.dims().to_vec(), 0))?;
    class.define_method("strides", method!(|a: &NativeArray| a.array.strides().to_vec(), 0))?;
    class.define_method("dtype", method!(|a: &NativeArray| a.array.dtype().to_string(), 0))?;
    class.define_method("device", method!(|a: &NativeArray| a.array.on().device().to_string(), 0))?;
    class.define_method("contiguous?", method!(|a: &NativeArray| a.array.is_contiguous(), 0))?;
    class.define_method("fortran_contiguous?", method!(|a: &NativeArray| a.array.is_fortran_contiguous(), 0))
}
