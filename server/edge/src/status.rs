// SPDX-License-Identifier: AGPL-3.0-only
//! How a call ends: a gRPC status, its text and Fila's reason, and what they look like on the wire.

use http::header::{HeaderMap, HeaderName, HeaderValue, CONTENT_TYPE};
use http::{Response, StatusCode};

use crate::outgoing::Outgoing;

pub const OK: u32 = 0;
pub const CANCELLED: u32 = 1;
pub const INVALID_ARGUMENT: u32 = 3;
pub const DEADLINE_EXCEEDED: u32 = 4;
pub const NOT_FOUND: u32 = 5;
pub const RESOURCE_EXHAUSTED: u32 = 8;
pub const UNIMPLEMENTED: u32 = 12;
pub const INTERNAL: u32 = 13;
pub const UNAVAILABLE: u32 = 14;

pub const ENCODINGS: &str = "identity,deflate,gzip";

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const REASON: HeaderName = HeaderName::from_static("fila-reason");
const ACCEPTED: HeaderName = HeaderName::from_static("grpc-accept-encoding");

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub code: u32,
    pub message: String,
    pub reason: String,
}

impl Status {
    pub fn new(code: u32, message: impl Into<String>, reason: &str) -> Self {
        Self { code, message: message.into(), reason: reason.to_owned() }
    }

    pub fn ok() -> Self {
        Self::new(OK, "", "")
    }

    pub fn overloaded(message: impl Into<String>) -> Self {
        Self::new(RESOURCE_EXHAUSTED, message, "OVERLOADED")
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(INVALID_ARGUMENT, message, "INVALID_ARGUMENT")
    }

    pub fn late() -> Self {
        Self::new(DEADLINE_EXCEEDED, "the deadline of the call has passed", "")
    }

    pub fn shutting_down() -> Self {
        Self::new(UNAVAILABLE, "the broker is shutting down", "SHUTTING_DOWN")
    }

    pub fn trailers(&self) -> HeaderMap {
        let mut map = HeaderMap::with_capacity(4);
        map.insert(STATUS, number(self.code));
        if !self.message.is_empty() {
            map.insert(MESSAGE, percent_encoded(&self.message));
        }
        if !self.reason.is_empty() {
            map.insert(REASON, percent_encoded(&self.reason));
        }
        map
    }

    /// The answer of a call that sent nothing: the trailers are its headers.
    pub fn alone(&self) -> Response<Outgoing> {
        let mut headers = self.trailers();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        if self.code == UNIMPLEMENTED {
            headers.insert(ACCEPTED, HeaderValue::from_static(ENCODINGS));
        }
        let mut response = Response::new(Outgoing::empty());
        *response.headers_mut() = headers;
        response
    }
}

/// An answer to what is not gRPC at all.
pub fn plain(code: StatusCode) -> Response<Outgoing> {
    let mut response = Response::new(Outgoing::empty());
    *response.status_mut() = code;
    response
}

fn number(code: u32) -> HeaderValue {
    if code == OK {
        HeaderValue::from_static("0")
    } else {
        HeaderValue::from(code)
    }
}

/// gRPC's own escaping: printable ASCII but `%` stays.
fn percent_encoded(text: &str) -> HeaderValue {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if (0x20..=0x7e).contains(&byte) && byte != b'%' {
            encoded.push(byte as char);
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            encoded.push('%');
            encoded.push(DIGITS[usize::from(byte >> 4)] as char);
            encoded.push(DIGITS[usize::from(byte & 15)] as char);
        }
    }
    HeaderValue::try_from(encoded).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let map = Status::new(INVALID_ARGUMENT, "100 % é\n", "R").trailers();
        assert_eq!(map[STATUS], "3");
        assert_eq!(map[MESSAGE], "100 %25 %C3%A9%0A");
        assert_eq!(map[REASON], "R");
    }

    #[test]
    fn ok_has_neither_text_nor_reason() {
        let map = Status::ok().trailers();
        assert_eq!((map.len(), map[STATUS].as_bytes()), (1, &b"0"[..]));
    }
}
