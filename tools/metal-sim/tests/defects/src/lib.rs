//! Compiles a `.metal` source for the simulated device and dispatches its kernels directly, without
//! Metal's API. Every buffer ends at a page that traps, and the caller chooses the order of
//! threads.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::{env, slice};

/// The order in which threads run between barriers.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// First to last.
    Forward,
    /// Last to first.
    Backward,
    /// Random, drawn again at every barrier, from this seed.
    Shuffled(u64),
    /// Interleaved: SIMD-groups switch at every SIMD operation, and odd lanes run first.
    InTurns,
}

/// How a library is compiled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Without checks.
    Plain,
    /// With a check of every memory access.
    Checked,
}

/// Compiles `kernels/NAME.metal` in the same way as our own kernels. The error is the compiler's
/// output.
pub fn compile(name: &str, mode: Mode) -> Result<(), String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(here.join("../../compile"))
        .args((mode == Mode::Checked).then_some("--checked"))
        .args([&work(), name])
        .arg(here.join(format!("kernels/{name}.metal")))
        .arg("-DSIM_THREAD_IS_PRIVATE")
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn work() -> String {
    env::var("METAL_SIM_WORK").expect("source the env.sh that tools/metal-sim/setup wrote")
}

#[repr(C)]
struct Launch {
    grid: [u32; 3],
    threadgroup: [u32; 3],
    grid_is_threads: c_int,
    buffers: *const Bound,
    buffer_count: c_int,
    threadgroup_memory: *const u32,
    threadgroup_memory_count: c_int,
    clock: *mut u32,
    ordered_until: u32,
    traffic: *mut [u64; 4],
}

#[repr(C)]
struct Bound {
    data: *mut c_void,
    length: usize,
    offset: usize,
    shadow: *mut c_void,
    is_fresh: c_int,
}

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
const RTLD_NOW: c_int = 2;

/// A loaded library. Its runtime supports only one caller, so only one library is loaded at a time.
pub struct Library {
    dispatch: unsafe extern "C" fn(*const c_char, *const Launch) -> c_int,
    error: unsafe extern "C" fn() -> *const c_char,
    warnings: unsafe extern "C" fn() -> *const c_char,
    clear: unsafe extern "C" fn(),
    thread_order: unsafe extern "C" fn(c_int, u64),
    alloc: unsafe extern "C" fn(usize) -> *mut c_void,
    shadow: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, usize),
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());
/// The clock of `sim_launch`, over all dispatches of the process.
static CLOCK: AtomicU32 = AtomicU32::new(0);

impl Library {
    /// Compiles `kernels/NAME.metal` and loads it.
    pub fn load(name: &str) -> Result<Self, String> {
        Self::load_as(name, Mode::Plain)
    }

    /// Compiles `kernels/NAME.metal` in this mode and loads it.
    pub fn load_as(name: &str, mode: Mode) -> Result<Self, String> {
        // A test that failed while it held the lock leaves no state that the next one reads.
        let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        compile(name, mode)?;
        let suffix = if mode == Mode::Checked { ".checked" } else { "" };
        let path = CString::new(format!("{}/lib/lib{name}{suffix}.so", work())).map_err(|error| error.to_string())?;
        // SAFETY: the library is ours; its constructors only register its kernels.
        let handle = unsafe { dlopen(path.as_ptr(), RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: after a failed dlopen, dlerror returns a C string.
            return Err(unsafe { text(dlerror()) });
        }
        // SAFETY: each symbol is a function of its field's type, as runtime/abi.h declares it.
        unsafe {
            Ok(Self {
                dispatch: symbol(handle, c"sim_dispatch"),
                error: symbol(handle, c"sim_error"),
                warnings: symbol(handle, c"sim_warnings"),
                clear: symbol(handle, c"sim_clear"),
                thread_order: symbol(handle, c"sim_thread_order"),
                alloc: symbol(handle, c"sim_alloc"),
                shadow: symbol(handle, c"sim_shadow"),
                free: symbol(handle, c"sim_free"),
                _alone: alone,
            })
        }
    }

    /// A buffer with these contents.
    pub fn buffer<T: Copy>(&self, values: &[T]) -> Buffer<'_> {
        let size = size_of_val(values);
        // SAFETY: the allocation holds `size` bytes, and nothing else refers to it yet.
        let data = unsafe {
            let data = (self.alloc)(size.max(1));
            assert!(!data.is_null(), "no memory for a buffer of {size} bytes");
            std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), data.cast::<u8>(), size);
            data
        };
        Buffer { library: self, data, size, offset: 0, is_fresh: false }
    }

    /// A buffer without contents.
    pub fn fresh(&self, size: usize) -> Buffer<'_> {
        // SAFETY: as above; its bytes are initialised, with any value.
        let data = unsafe { (self.alloc)(size) };
        assert!(!data.is_null(), "no memory for a buffer of {size} bytes");
        Buffer { library: self, data, size, offset: 0, is_fresh: true }
    }

    /// Runs a kernel over `groups` threadgroups of `threads` threads, both in one dimension, and
    /// returns its warnings.
    pub fn dispatch(
        &self,
        kernel: &str,
        grid: [u32; 2],
        buffers: &[&Buffer<'_>],
        order: Order,
    ) -> Result<String, String> {
        self.dispatch_together(&[kernel], grid, buffers, order)
    }

    /// Bytes that one dispatch in a checked library reads and writes, and how many distinct ones of
    /// each.
    pub fn traffic(&self, kernel: &str, grid: [u32; 2], buffers: &[&Buffer<'_>]) -> [u64; 4] {
        let mut traffic = [0; 4];
        self.dispatch_counted(&[kernel], grid, buffers, Order::Forward, &mut traffic).unwrap();
        traffic
    }

    /// Like [`Library::dispatch`], for several kernels without a barrier between them.
    pub fn dispatch_together(
        &self,
        kernels: &[&str],
        grid: [u32; 2],
        buffers: &[&Buffer<'_>],
        order: Order,
    ) -> Result<String, String> {
        self.dispatch_counted(kernels, grid, buffers, order, &mut [0; 4])
    }

    fn dispatch_counted(
        &self,
        kernels: &[&str],
        [groups, threads]: [u32; 2],
        buffers: &[&Buffer<'_>],
        order: Order,
        traffic: &mut [u64; 4],
    ) -> Result<String, String> {
        let bound: Vec<Bound> = buffers.iter().map(|buffer| buffer.bound()).collect();
        let ordered_until = CLOCK.fetch_add(1, Ordering::Relaxed) + 1;
        let launch = Launch {
            grid: [groups, 1, 1],
            threadgroup: [threads, 1, 1],
            grid_is_threads: 0,
            buffers: bound.as_ptr(),
            buffer_count: bound.len() as c_int,
            threadgroup_memory: std::ptr::null(),
            threadgroup_memory_count: 0,
            clock: CLOCK.as_ptr(),
            ordered_until,
            traffic,
        };
        let (mode, seed) = match order {
            Order::Forward => (0, 0),
            Order::Backward => (1, 0),
            Order::Shuffled(seed) => (2, seed),
            Order::InTurns => (3, 0),
        };
        // SAFETY: `launch` and everything it points to outlive the calls; a kernel traps if it
        // leaves its buffers.
        unsafe {
            (self.clear)();
            (self.thread_order)(mode, seed);
            for kernel in kernels {
                let kernel = CString::new(*kernel).map_err(|error| error.to_string())?;
                if (self.dispatch)(kernel.as_ptr(), &launch) != 0 {
                    return Err(text((self.error)()));
                }
            }
            Ok(text((self.warnings)()))
        }
    }
}

/// Memory that a kernel may read and write. An access past its end traps.
pub struct Buffer<'a> {
    library: &'a Library,
    data: *mut c_void,
    size: usize,
    offset: usize,
    is_fresh: bool,
}

impl Buffer<'_> {
    /// The buffer, bound at this offset in bytes.
    pub fn at(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }

    fn bound(&self) -> Bound {
        // SAFETY: allocated by the same library with the same size.
        let shadow = unsafe { (self.library.shadow)(self.data, self.size.max(1)) };
        Bound { data: self.data, length: self.size, offset: self.offset, shadow, is_fresh: self.is_fresh.into() }
    }

    /// A copy of the contents.
    pub fn read<T: Copy>(&self) -> Vec<T> {
        // SAFETY: the allocation holds `size` initialised bytes at 16-byte alignment, and no kernel
        // runs now.
        unsafe { slice::from_raw_parts(self.data.cast::<T>(), self.size / size_of::<T>()).to_vec() }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated by the same library with the same size.
        unsafe { (self.library.free)(self.data, self.size.max(1)) }
    }
}

/// # Safety
/// `F` must be the type of the function of that name.
unsafe fn symbol<F: Copy>(library: *mut c_void, name: &CStr) -> F {
    // SAFETY: `library` was returned by dlopen; the caller guarantees that `F` is a function
    // pointer of this type.
    unsafe {
        let address = dlsym(library, name.as_ptr());
        assert!(!address.is_null(), "the library lacks {name:?}");
        std::mem::transmute_copy(&address)
    }
}

/// # Safety
/// `p` must be a C string.
unsafe fn text(p: *const c_char) -> String {
    // SAFETY: the caller guarantees it.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}
