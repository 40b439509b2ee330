//! Numbers that numpy reads in place.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An array that owns its values. `numpy.asarray` reads them without a copy and keeps this object
/// alive. The buffer protocol would do the same, but the stable ABI has it from Python 3.11 only.
#[pyclass(frozen, module = "sconce._sconce")]
pub(crate) struct Array {
    values: Values,
    shape: Vec<usize>,
}

enum Values {
    F32(Vec<f32>),
    U8(Vec<u8>),
    I8(Vec<u8>),
    I64(Vec<i64>),
}

impl Array {
    /// f32 `[rows, columns]`.
    pub(crate) fn rows(values: Vec<f32>, columns: usize) -> Array {
        let rows = values.len().checked_div(columns).unwrap_or(0);
        Array { values: Values::F32(values), shape: vec![rows, columns] }
    }

    /// f32 `[values]`.
    pub(crate) fn list(values: Vec<f32>) -> Array {
        Array { shape: vec![values.len()], values: Values::F32(values) }
    }

    /// i64 `[values]`.
    pub(crate) fn indices(values: Vec<i64>) -> Array {
        Array { shape: vec![values.len()], values: Values::I64(values) }
    }

    /// `[rows, columns]` of bytes.
    pub(crate) fn bytes(values: Vec<u8>, columns: usize, is_signed: bool) -> Array {
        let shape = vec![values.len().checked_div(columns).unwrap_or(0), columns];
        Array { values: if is_signed { Values::I8(values) } else { Values::U8(values) }, shape }
    }
}

#[pymethods]
impl Array {
    /// numpy's array interface, version 3. The values are not marked read-only: only numpy uses
    /// them from here on.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (kind, address) = match &self.values {
            Values::F32(values) => ("f4", values.as_ptr().addr()),
            Values::U8(values) => ("u1", values.as_ptr().addr()),
            Values::I8(values) => ("i1", values.as_ptr().addr()),
            Values::I64(values) => ("i8", values.as_ptr().addr()),
        };
        let order = if cfg!(target_endian = "big") { '>' } else { '<' };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", pyo3::types::PyTuple::new(py, &self.shape)?)?;
        interface.set_item("typestr", format!("{order}{kind}"))?;
        interface.set_item("data", (address, false))?;
        Ok(interface)
    }
}
