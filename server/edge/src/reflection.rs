// SPDX-License-Identifier: AGPL-3.0-only
//! gRPC's reflection service, for tools that learn the contract from the broker. The answers come
//! from Python as bytes; here they are only looked up.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::outbox::framed;
use crate::status::{Status, INVALID_ARGUMENT, NOT_FOUND};
use crate::wire::{self, Value};

const PATHS: [&str; 2] = [
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
];
/// A tool asks for a name.
pub const REQUEST_BYTES_MAX: usize = 4096;

// Fields of ServerReflectionRequest and ServerReflectionResponse.
const HOST: u32 = 1;
const FIRST_QUESTION: u32 = 3;
const EXTENSION: u32 = 5;
const LIST: u32 = 7;
const VALID_HOST: u32 = 1;
const ORIGINAL: u32 = 2;
const ERROR: u32 = 7;

pub fn is_path(path: &str) -> bool {
    PATHS.contains(&path)
}

/// A file answers the questions about all that is in it, so many questions share an answer.
pub struct Reflection(HashMap<(u32, String), Arc<[u8]>>);

impl Reflection {
    pub fn new(table: Vec<(u32, String, Vec<u8>)>) -> Self {
        let mut answers: HashSet<Arc<[u8]>> = HashSet::new();
        let mut rows = HashMap::with_capacity(table.len());
        for (number, name, answer) in table {
            let answer = answers.get(&answer[..]).cloned().unwrap_or_else(|| answer.into());
            answers.insert(Arc::clone(&answer));
            rows.insert((number, name), answer);
        }
        Self(rows)
    }

    pub fn too_large(size: usize) -> Status {
        Status::new(
            INVALID_ARGUMENT,
            format!("a reflection request of {size} bytes exceeds {REQUEST_BYTES_MAX}"),
            "MESSAGE_TOO_LARGE",
        )
    }

    /// Return the framed answer to a request.
    pub fn answer(&self, request: &[u8]) -> Result<Bytes, Status> {
        let mut host: &[u8] = b"";
        let mut question = None;
        for (number, value) in wire::fields(request)? {
            match (number, value) {
                (HOST, Value::Bytes(raw)) => host = wire::text(raw)?.as_bytes(),
                (EXTENSION, Value::Bytes(raw)) => question = Some((number, extension(raw)?)),
                (FIRST_QUESTION..=LIST, Value::Bytes(raw)) => {
                    question = Some((number, wire::text(raw)?.to_owned()));
                }
                _ => {}
            }
        }
        let mut answer = Vec::new();
        if !host.is_empty() {
            wire::put_bytes(&mut answer, VALID_HOST, host);
        }
        wire::put_bytes(&mut answer, ORIGINAL, request);
        match question {
            None => error(&mut answer, INVALID_ARGUMENT, "the request asks nothing"),
            Some((number, name)) => {
                let name = if number == LIST { String::new() } else { name };
                let key = (number, name);
                match self.0.get(&key) {
                    Some(found) => answer.extend_from_slice(found),
                    None => {
                        let text = format!("\"{}\" is not part of the contract", key.1);
                        error(&mut answer, NOT_FOUND, &text);
                    }
                }
            }
        }
        framed(&answer).ok_or_else(|| Self::too_large(request.len()))
    }
}

/// An extension is asked for by its type and its number: "type number" in the table.
fn extension(raw: &[u8]) -> Result<String, Status> {
    let (mut name, mut wanted) = ("", 0);
    for (number, value) in wire::fields(raw)? {
        match (number, value) {
            (1, Value::Bytes(raw)) => name = wire::text(raw)?,
            (2, Value::Number(found)) => wanted = found,
            _ => {}
        }
    }
    Ok(format!("{name} {wanted}"))
}

fn error(answer: &mut Vec<u8>, code: u32, text: &str) {
    let mut error = vec![0x08];
    wire::put_varint(&mut error, u64::from(code));
    wire::put_bytes(&mut error, 2, text.as_bytes());
    wire::put_bytes(answer, ERROR, &error);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reflection() -> Reflection {
        Reflection::new(vec![
            (4, "a.B".into(), b"\x22\x01f".to_vec()),
            (7, String::new(), b"\x32\0".to_vec()),
        ])
    }

    #[test]
    fn an_answer_echoes_host_and_request() {
        let request = b"\x0a\x01h\x22\x03a.B";
        let expected = [b"\x0a\x01h\x12\x08", &request[..], b"\x22\x01f"].concat();
        assert_eq!(reflection().answer(request), Ok(framed(&expected).expect("it fits")));
    }

    #[test]
    fn services_are_listed_whatever_the_argument() {
        let expected = b"\x12\x03\x3a\x01*\x32\0";
        assert_eq!(reflection().answer(b"\x3a\x01*"), Ok(framed(expected).expect("it fits")));
    }

    #[test]
    fn what_is_unknown_is_an_error_response() {
        for (request, code) in [(&b"\x22\x01x"[..], 5), (b"", 3), (b"\x2a\x04\x0a\x00\x10\x07", 5)]
        {
            let answer = reflection().answer(request).expect("errors are answers");
            let fields = wire::fields(&answer[5..]).expect("it is a message");
            let Some((7, Value::Bytes(error))) = fields.last() else { panic!("{fields:?}") };
            assert_eq!(error[..2], [8, code]);
        }
    }

    #[test]
    fn noise_is_refused() {
        assert_eq!(reflection().answer(b"\xff\xff").expect_err("noise").reason, "INVALID_ARGUMENT");
    }
}
