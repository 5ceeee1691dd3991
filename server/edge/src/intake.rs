// SPDX-License-Identifier: AGPL-3.0-only
//! The cutter as Python sees it: the parts of an enqueue request as Python's own objects.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::cutter;

/// See fila_edge.pyi.
#[pyfunction]
pub fn draft<'py>(py: Python<'py>, encoded: &[u8]) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let Some(found) = cutter::draft(encoded) else { return Ok(None) };
    // The cutter has seen that nothing is lost.
    let queue = PyString::new(py, &String::from_utf8_lossy(&encoded[found.queue]));
    let content = PyBytes::new(py, &encoded[found.content]);
    let terms = PyBytes::new(py, &encoded[found.terms]);
    (queue, content, terms, found.payload_bytes, found.headers, found.header_bytes)
        .into_pyobject(py)
        .map(Some)
}
