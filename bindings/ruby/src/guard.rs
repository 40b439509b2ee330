//! Panics of native methods as exceptions. magnus raises `fatal` for a panic, which no `rescue`
//! catches and which ends the process.
//!
//! The macros `method` and `function` replace those of magnus: they wrap every method in [`guard`].

use crate::error::failure;
use magnus::{Error, Ruby};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a native method; a panic, which only a bug of ours can cause, is an exception.
pub(crate) fn guard<T>(ruby: &Ruby, body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(bug(ruby, &*panic)))
}

/// The exception for a panic.
pub(crate) fn bug(ruby: &Ruby, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    failure(ruby, format!("internal error, please report it: {}", text.unwrap_or("no message")))
}

/// A method of so many arguments: a function of the Ruby handle, the receiver and the arguments.
macro_rules! method {
    ($f:expr, 0) => {
        $crate::guard::method!($f; method, 0, this)
    };
    ($f:expr, 1) => {
        $crate::guard::method!($f; method, 1, this, a)
    };
    ($f:expr, 2) => {
        $crate::guard::method!($f; method, 2, this, a, b)
    };
    ($f:expr, 3) => {
        $crate::guard::method!($f; method, 3, this, a, b, c)
    };
    ($f:expr, 4) => {
        $crate::guard::method!($f; method, 4, this, a, b, c, d)
    };
    ($f:expr, 5) => {
        $crate::guard::method!($f; method, 5, this, a, b, c, d, e)
    };
    ($f:expr; $kind:ident, $count:tt $(, $arg:ident)*) => {
        ::magnus::$kind!(|ruby: &::magnus::Ruby $(, $arg)*| $crate::guard::guard(ruby, || $f(ruby $(, $arg)*)), $count)
    };
}

/// A class method of so many arguments: a function of the Ruby handle and the arguments.
macro_rules! function {
    ($f:expr, 0) => {
        $crate::guard::method!($f; function, 0)
    };
    ($f:expr, 1) => {
        $crate::guard::method!($f; function, 1, a)
    };
    ($f:expr, 2) => {
        $crate::guard::method!($f; function, 2, a, b)
    };
    ($f:expr, 3) => {
        $crate::guard::method!($f; function, 3, a, b, c)
    };
    ($f:expr, 4) => {
        $crate::guard::method!($f; function, 4, a, b, c, d)
    };
}

pub(crate) use {function, method};
