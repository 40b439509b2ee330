//! Errors of the engine as Ruby exceptions.

use magnus::value::{InnerValue, Lazy, ReprValue};
use magnus::{Error, ExceptionClass, Module, RModule, Ruby};

/// `Sconce::Error`, a `RuntimeError`.
static ERROR: Lazy<ExceptionClass> = Lazy::new(|ruby| {
    let found = ruby.class_object().const_get::<_, RModule>("Sconce").and_then(|module| module.const_get("Error"));
    found.unwrap_or_else(|_| ruby.exception_runtime_error())
});

/// The exception for a failure of ours.
pub(crate) fn failure(ruby: &Ruby, why: impl ToString) -> Error {
    Error::new(ERROR.get_inner_with(ruby), why.to_string())
}

/// The exception for an argument that cannot be used.
pub(crate) fn argument(ruby: &Ruby, why: impl ToString) -> Error {
    Error::new(ruby.exception_arg_error(), why.to_string())
}

/// The exception for an argument of another class than expected.
pub(crate) fn wrong_type(ruby: &Ruby, wanted: &str, value: impl ReprValue) -> Error {
    // SAFETY: the name is copied before Ruby runs again.
    #[allow(unsafe_code, reason = "the class name is borrowed from Ruby")]
    let class = unsafe { value.classname() }.into_owned();
    Error::new(ruby.exception_type_error(), format!("{wanted} is expected, not {class}"))
}
