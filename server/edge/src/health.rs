// SPDX-License-Identifier: AGPL-3.0-only
//! gRPC's health service: whether the broker serves, for probes and load balancers. The status of
//! all services is one and the same. Nobody needs a key for it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use bytes::Bytes;

use crate::calls::{Call, Out, Taken};
use crate::outbox::framed;
use crate::status::{Status, NOT_FOUND};
use crate::wire::{self, Value};

const PREFIX: &str = "/grpc.health.v1.Health/";
const SERVING: u8 = 1;
const NOT_SERVING: u8 = 2;
const SERVICE_UNKNOWN: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Check,
    List,
    Watch,
}

impl Method {
    pub fn of(path: &str) -> Option<Self> {
        match path.strip_prefix(PREFIX)? {
            "Check" => Some(Self::Check),
            "List" => Some(Self::List),
            "Watch" => Some(Self::Watch),
            _ => None,
        }
    }
}

pub fn is_open(path: &str) -> bool {
    path.starts_with(PREFIX)
}

pub struct Health {
    services: BTreeSet<String>,
    status: Cell<u8>,
    watches: RefCell<Vec<Weak<Call>>>,
}

impl Health {
    pub fn new(services: Vec<String>) -> Self {
        let services = services.into_iter().chain([String::new()]).collect();
        Self { services, status: Cell::new(NOT_SERVING), watches: RefCell::default() }
    }

    pub fn set(&self, is_serving: bool) {
        self.status.set(if is_serving { SERVING } else { NOT_SERVING });
        let frame = frame(&encoded(self.status.get()));
        self.watches.borrow_mut().retain(|watch| match watch.upgrade() {
            Some(call) => {
                call.replace(frame.clone());
                true
            }
            None => false,
        });
    }

    pub fn check(&self, request: &[u8]) -> Result<Bytes, Status> {
        if !self.services.contains(service(request)?) {
            return Err(Status::new(NOT_FOUND, "no such service", ""));
        }
        Ok(frame(&encoded(self.status.get())))
    }

    pub fn list(&self, request: &[u8]) -> Result<Bytes, Status> {
        wire::fields(request)?;
        let mut found = Vec::new();
        for name in &self.services {
            let mut entry = Vec::new();
            wire::put_bytes(&mut entry, 1, name.as_bytes());
            wire::put_bytes(&mut entry, 2, &encoded(self.status.get()));
            wire::put_bytes(&mut found, 1, &entry);
        }
        Ok(frame(&found))
    }

    /// Begin a watch: the status now, and again whenever it changes.
    pub fn watch(&self, request: &[u8]) -> Result<Rc<Call>, Status> {
        let is_known = self.services.contains(service(request)?);
        let call = Call::own();
        let status = if is_known { self.status.get() } else { SERVICE_UNKNOWN };
        call.push(Out::Frame { content: frame(&encoded(status)), taken: Taken::Nothing });
        if is_known {
            let mut watches = self.watches.borrow_mut();
            if watches.len() == watches.capacity() {
                watches.retain(|watch| watch.strong_count() > 0);
            }
            watches.push(Rc::downgrade(&call));
        }
        Ok(call)
    }
}

fn service(request: &[u8]) -> Result<&str, Status> {
    let mut found = "";
    for (number, value) in wire::fields(request)? {
        if let (1, Value::Bytes(raw)) = (number, value) {
            found = wire::text(raw)?;
        }
    }
    Ok(found)
}

fn encoded(status: u8) -> [u8; 2] {
    [0x08, status]
}

fn frame(message: &[u8]) -> Bytes {
    framed(message).expect("a few names fit")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_knows_its_services_and_the_broker_as_a_whole() {
        let health = Health::new(vec!["a.B".into()]);
        assert_eq!(health.check(b""), Ok(frame(b"\x08\x02")));
        health.set(true);
        assert_eq!(health.check(b""), Ok(frame(b"\x08\x01")));
        assert_eq!(health.check(b"\x0a\x03a.B"), Ok(frame(b"\x08\x01")));
        assert_eq!(health.check(b"\x0a\x01x").expect_err("unknown").code, NOT_FOUND);
        assert_eq!(health.check(b"\xff\xff").expect_err("noise").reason, "INVALID_ARGUMENT");
        assert_eq!(health.check(b"\x0a\x01\xff").expect_err("no text").reason, "INVALID_ARGUMENT");
    }

    #[test]
    fn list_has_them_all() {
        let health = Health::new(vec!["a".into()]);
        let expected = b"\x0a\x06\x0a\x00\x12\x02\x08\x02\x0a\x07\x0a\x01a\x12\x02\x08\x02";
        assert_eq!(health.list(b""), Ok(frame(expected)));
    }

    #[test]
    fn watches_that_ended_are_forgotten() {
        let health = Health::new(vec![]);
        for _ in 0..1000 {
            drop(health.watch(b"").expect("it is known"));
        }
        assert!(health.watches.borrow().len() < 10);
    }

    #[test]
    fn paths() {
        assert_eq!(Method::of("/grpc.health.v1.Health/Watch"), Some(Method::Watch));
        assert_eq!(Method::of("/grpc.health.v1.Health/Other"), None);
        assert!(is_open("/grpc.health.v1.Health/Other") && !is_open("/fila.v1.FilaService/Ack"));
    }
}
