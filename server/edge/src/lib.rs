// SPDX-License-Identifier: AGPL-3.0-only
//! Fila's native gRPC edge: sockets, HTTP/2, TLS, framing, limits, health and reflection, on one
//! thread of its own beside the Python core. README.md says how the modules fit together.

mod budget;
mod calls;
mod connection;
mod cutter;
mod edge;
mod figures;
mod floods;
mod frames;
mod framing;
mod health;
mod inbox;
mod inflate;
mod intake;
mod keys;
mod listener;
mod outbox;
mod outgoing;
mod reflection;
mod request;
mod serve;
mod settings;
mod state;
mod status;
mod thread;
mod timeout;
mod tls;
mod unread;
mod watched;
mod wire;

use pyo3::prelude::*;

// Kinds of events.
const CALL: u8 = 0;
const MESSAGE: u8 = 1;
const HALF_CLOSED: u8 = 2;
const TAKEN: u8 = 3;
const GONE: u8 = 4;
const KEY: u8 = 5;

// Kinds of routes.
const UNARY: u8 = 0;
const SERVER_STREAM: u8 = 1;
const BIDI: u8 = 2;

#[pymodule]
fn fila_edge(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<edge::Edge>()?;
    module.add_function(wrap_pyfunction!(intake::draft, module)?)?;
    for (name, kind) in [
        ("CALL", CALL),
        ("MESSAGE", MESSAGE),
        ("HALF_CLOSED", HALF_CLOSED),
        ("TAKEN", TAKEN),
        ("GONE", GONE),
        ("KEY", KEY),
        ("UNARY", UNARY),
        ("SERVER_STREAM", SERVER_STREAM),
        ("BIDI", BIDI),
    ] {
        module.add(name, kind)?;
    }
    Ok(())
}
