//! Errors of the engine as Python exceptions, which `sconce/errors.py` defines.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use sconce_engine::{Error, ErrorClass, FileError};
use std::path::Path;

/// The exception for an error.
pub(crate) fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error.class() {
        ErrorClass::Input => "InputError",
        ErrorClass::Files => "FilesError",
        ErrorClass::Unsound => "UnsoundError",
        ErrorClass::Device => "DeviceError",
        ErrorClass::Ended => "CancelledError",
        ErrorClass::Bug => "InternalError",
        _ => "SconceError",
    };
    exception(py, class, &error.to_string())
}

/// The engine's error for an error of the index in `path`: it has the class that the error of the
/// index would have.
pub(crate) fn of_index(path: &Path, error: sconce_index::Error) -> Error {
    use sconce_index::Error as Of;
    match error {
        Of::Engine(error) => error,
        Of::Cancelled => Error::Cancelled,
        Of::Input(why) | Of::Model(why) => Error::Input(why),
        Of::Database { path, why } | Of::Segment { path, why } => FileError::new(&path, why).into(),
        Of::Io { path, error } => FileError::new(&path, error).into(),
        other => FileError::new(path, other).into(),
    }
}

/// The exception of this name.
pub(crate) fn exception(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let raised = py.import("sconce.errors").and_then(|module| module.getattr(class)?.call1((message,)));
    raised.map_or_else(|_| PyRuntimeError::new_err(message.to_owned()), PyErr::from_value)
}

/// Passes an error of the engine on.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Into<Error>> OrRaise<T> for Result<T, E> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|e| to_python(py, &e.into()))
    }
}
