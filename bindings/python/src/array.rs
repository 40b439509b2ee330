//! Numbers that numpy reads in place.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::any::Any;

/// An array that owns its values. `numpy.asarray` reads them without a copy and keeps this object
/// alive. The buffer protocol would do the same, but the stable ABI has it from Python 3.11 only.
#[pyclass(frozen, module = "sconce._sconce")]
pub(crate) struct Array {
    /// Kept for numpy; read and written only through `address`.
    _values: Box<dyn Any + Send + Sync>,
    /// Of the first value. Its provenance is exposed, so that numpy may write there.
    address: usize,
    kind: &'static str,
    shape: Vec<usize>,
}

impl Array {
    fn new<T: Any + Send + Sync>(mut values: Vec<T>, kind: &'static str, shape: Vec<usize>) -> Array {
        let address = values.as_mut_ptr().expose_provenance();
        Array { _values: Box::new(values), address, kind, shape }
    }

    /// f32 `[rows, columns]`.
    pub(crate) fn rows(values: Vec<f32>, columns: usize) -> Array {
        let rows = values.len().checked_div(columns).unwrap_or(0);
        Array::new(values, "f4", vec![rows, columns])
    }

    /// f32 `[values]`.
    pub(crate) fn list(values: Vec<f32>) -> Array {
        let shape = vec![values.len()];
        Array::new(values, "f4", shape)
    }

    /// i64 `[values]`.
    pub(crate) fn indices(values: Vec<i64>) -> Array {
        let shape = vec![values.len()];
        Array::new(values, "i8", shape)
    }

    /// `[rows, columns]` of bytes.
    pub(crate) fn bytes(values: Vec<u8>, columns: usize, is_signed: bool) -> Array {
        let shape = vec![values.len().checked_div(columns).unwrap_or(0), columns];
        Array::new(values, if is_signed { "i1" } else { "u1" }, shape)
    }
}

#[pymethods]
impl Array {
    /// numpy's array interface, version 3. The values are not marked read-only: only numpy uses
    /// them.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let order = if cfg!(target_endian = "big") { '>' } else { '<' };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", pyo3::types::PyTuple::new(py, &self.shape)?)?;
        interface.set_item("typestr", format!("{order}{}", self.kind))?;
        interface.set_item("data", (self.address, false))?;
        Ok(interface)
    }
}

/// The f32 values in the bytes of a numpy array. The stable ABI has no buffer protocol before
/// Python 3.11, so arrays come in as bytes.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_ne_bytes([four[0], four[1], four[2], four[3]])).collect()
}
