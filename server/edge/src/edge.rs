// SPDX-License-Identifier: AGPL-3.0-only
//! The edge as Python sees it; fila_edge.pyi says what each method promises. Nothing here waits but
//! `close`, and that without the interpreter's lock.

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::fd::FromRawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use http::HeaderName;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::budget::Budget;
use crate::inbox::{Event, Inbox};
use crate::outbox::{framed, Command};
use crate::reflection::Reflection;
use crate::settings::Settings;
use crate::state::{Contract, Kind, Shared};
use crate::status::Status;
use crate::thread;
use crate::tls::{Certificates, Pem};
use crate::{BIDI, CALL, GONE, HALF_CLOSED, KEY, MESSAGE, SERVER_STREAM, TAKEN, UNARY};

type Files = (Vec<u8>, Vec<u8>, Option<Vec<u8>>);

#[pyclass(frozen, module = "fila_edge")]
pub struct Edge {
    shared: Shared,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[pymethods]
impl Edge {
    #[new]
    #[pyo3(signature = (*, listeners, routes, metadata, settings, certificates, needs_key,
                        services, reflection))]
    #[allow(clippy::too_many_arguments)] // they are keywords, all of them
    fn new(
        listeners: Vec<i32>,
        routes: Vec<(String, u8)>,
        metadata: Vec<String>,
        settings: HashMap<String, i64>,
        certificates: Option<Files>,
        needs_key: bool,
        services: Vec<String>,
        reflection: Option<Vec<(u32, String, Vec<u8>)>>,
    ) -> PyResult<Self> {
        let settings = Settings::new(settings).map_err(PyValueError::new_err)?;
        let contract = Contract {
            routes: routes_of(routes)?,
            metadata: names_of(metadata)?,
            needs_key,
            services,
            reflection: reflection.map(Reflection::new),
            settings,
        };
        let certificates = match certificates {
            None => None,
            Some(files) => {
                let found = Certificates::new(&pem(files)).map_err(PyValueError::new_err)?;
                Some(Arc::new(found))
            }
        };
        let figures = Arc::default();
        let shared = Shared {
            inbox: Inbox::new(Arc::clone(&figures))?,
            outbox: Arc::default(),
            budget: Budget::new(contract.settings.inbox_bytes),
            keys: Arc::default(),
            figures,
            certificates,
        };
        let mut sockets = Vec::with_capacity(listeners.len());
        for descriptor in listeners {
            // SAFETY: the caller hands its listening sockets over, and uses them no more.
            let socket = unsafe { TcpListener::from_raw_fd(descriptor) };
            socket.set_nonblocking(true)?;
            sockets.push(socket);
        }
        let thread = thread::start(contract, shared.clone(), sockets)?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    fn fileno(&self) -> i32 {
        self.shared.inbox.descriptor()
    }

    fn take<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyList>> {
        let events = self.shared.inbox.take(most);
        let rows = events.into_iter().map(|event| row(py, event)).collect::<PyResult<Vec<_>>>()?;
        PyList::new(py, rows)
    }

    fn admit(&self, value: &str) {
        self.shared.keys.admit(value);
    }

    fn reject(&self, value: Option<&str>, code: u32, message: &str, reason: &str) {
        self.shared.keys.reject(value, Status::new(code, message, reason));
    }

    #[pyo3(signature = (value=None))]
    fn forget(&self, value: Option<&str>) {
        self.shared.keys.forget(value);
    }

    fn answer(&self, replies: &Bound<'_, PyList>) -> PyResult<()> {
        let mut commands = Vec::with_capacity(replies.len());
        let mut wrong = None;
        for (index, reply) in replies.iter().enumerate() {
            match answer_of(&reply) {
                Ok(command) => commands.push(command),
                Err(error) => wrong = wrong.or(Some((index, error))),
            }
        }
        self.shared.outbox.put_all(commands);
        match wrong {
            None => Ok(()),
            Some((index, error)) => {
                Err(PyTypeError::new_err(format!("reply {index} is no (id, bytes): {error}")))
            }
        }
    }

    fn open(&self, id: u64) {
        self.shared.outbox.put(Command::Open { id });
    }

    fn write(&self, id: u64, frame: &[u8]) -> PyResult<()> {
        let content = framed(frame).ok_or_else(|| too_long(frame))?;
        self.shared.outbox.put(Command::Write { id, content });
        Ok(())
    }

    fn finish(&self, id: u64, frame: &[u8]) -> PyResult<()> {
        let content = framed(frame).ok_or_else(|| too_long(frame))?;
        self.shared.outbox.put(Command::Finish { id, content });
        Ok(())
    }

    fn reply(&self, id: u64, frame: &[u8]) -> PyResult<()> {
        let content = framed(frame).ok_or_else(|| too_long(frame))?;
        self.shared.outbox.put(Command::Reply { id, content });
        Ok(())
    }

    fn end(&self, id: u64, code: u32, message: &str, reason: &str) {
        let status = Status::new(code, message, reason);
        self.shared.outbox.put(Command::End { id, status });
    }

    fn more(&self, id: u64, count: u64) {
        self.shared.outbox.put(Command::More { id, count });
    }

    fn serving(&self, is_serving: bool) {
        self.shared.outbox.put(Command::Serving(is_serving));
    }

    fn drain(&self) {
        self.shared.outbox.put(Command::Drain);
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.stop());
    }

    fn reload(&self, certificates: Files) -> PyResult<()> {
        let Some(used) = &self.shared.certificates else {
            return Err(PyValueError::new_err(
                "the edge has no TLS; turning it on needs a restart",
            ));
        };
        used.reload(&pem(certificates)).map_err(PyValueError::new_err)
    }

    fn figures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        for (name, value) in self.shared.figures.rows() {
            found.set_item(name, value)?;
        }
        found.set_item("inbox_bytes", self.shared.budget.taken())?;
        Ok(found)
    }
}

impl Edge {
    fn stop(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            self.shared.outbox.put(Command::Close);
            let _ = thread.join();
        }
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        self.stop(); // the thread never needs the interpreter's lock, so this cannot hang
    }
}

fn row<'py>(py: Python<'py>, event: Event) -> PyResult<Bound<'py, PyTuple>> {
    match event {
        Event::Call { id, route, body, metadata, .. } => {
            let body = body.map(|body| PyBytes::new(py, &body));
            (CALL, id, route, body, PyTuple::new(py, metadata)?).into_pyobject(py)
        }
        Event::Message { id, body, .. } => (MESSAGE, id, PyBytes::new(py, &body)).into_pyobject(py),
        Event::HalfClosed { id } => (HALF_CLOSED, id).into_pyobject(py),
        Event::Taken { id } => (TAKEN, id).into_pyobject(py),
        Event::Gone { id } => (GONE, id).into_pyobject(py),
        Event::Key { value, path } => (KEY, value, path).into_pyobject(py),
    }
}

fn answer_of(reply: &Bound<'_, PyAny>) -> PyResult<Command> {
    let (id, content): (u64, Bound<'_, PyBytes>) = reply.extract()?;
    let message = content.as_bytes();
    let content = framed(message).ok_or_else(|| too_long(message))?;
    Ok(Command::Answer { id, content })
}

fn too_long(message: &[u8]) -> PyErr {
    PyValueError::new_err(format!("a message of {} bytes is too long for gRPC", message.len()))
}

fn routes_of(routes: Vec<(String, u8)>) -> PyResult<HashMap<String, (usize, Kind)>> {
    let mut found = HashMap::with_capacity(routes.len());
    for (index, (path, kind)) in routes.into_iter().enumerate() {
        let kind = match kind {
            UNARY => Kind::Unary,
            SERVER_STREAM => Kind::ServerStream,
            BIDI => Kind::Bidi,
            _ => return Err(PyValueError::new_err(format!("{path}: there is no kind {kind}"))),
        };
        found.insert(path, (index, kind));
    }
    Ok(found)
}

fn names_of(metadata: Vec<String>) -> PyResult<Vec<HeaderName>> {
    let name = |it: String| match HeaderName::from_lowercase(it.as_bytes()) {
        Ok(name) => Ok(name),
        Err(_) => Err(PyValueError::new_err(format!("\"{it}\" is no lower-case header name"))),
    };
    metadata.into_iter().map(name).collect()
}

fn pem((chain, key, ca): Files) -> Pem {
    Pem { chain, key, ca }
}
