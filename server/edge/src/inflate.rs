// SPDX-License-Identifier: AGPL-3.0-only
//! Requests that were compressed. They are inflated a little at a time, so that a large one does
//! not hold up the others, and never beyond what a request may have.

use std::io::Read;

use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};

use crate::status::{Status, INTERNAL};

/// As much as takes a fraction of a millisecond.
const STEP_BYTES: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Identity,
    Gzip,
    Deflate,
}

impl Encoding {
    /// Return what a `grpc-encoding` header names, or None if nobody here knows it.
    pub fn named(header: &[u8]) -> Option<Self> {
        match header {
            b"identity" => Some(Self::Identity),
            b"gzip" => Some(Self::Gzip),
            b"deflate" => Some(Self::Deflate),
            _ => None,
        }
    }

    /// Inflate a message. `exceeded` makes the refusal of one that has more than `most` bytes.
    pub async fn inflated(
        self,
        message: &[u8],
        most: usize,
        exceeded: impl Fn(usize) -> Status,
    ) -> Result<Bytes, Status> {
        let mut source: Box<dyn Read + '_> = match self {
            Self::Identity => {
                return Err(Status::new(
                    INTERNAL,
                    "a message is marked as compressed, but no grpc-encoding names how",
                    "",
                ));
            }
            Self::Gzip => Box::new(MultiGzDecoder::new(message)),
            Self::Deflate => Box::new(ZlibDecoder::new(message)),
        };
        let mut found = Vec::new();
        loop {
            let begin = found.len();
            found.resize(begin + STEP_BYTES, 0);
            let count = source.read(&mut found[begin..]).map_err(|_| {
                Status::invalid("the request cannot be decoded: it is not what its encoding says")
            })?;
            found.truncate(begin + count);
            if count == 0 {
                return Ok(found.into());
            }
            if found.len() > most {
                return Err(exceeded(found.len()));
            }
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use flate2::Compression;
    use std::io::Write;

    fn inflate(encoding: Encoding, message: &[u8], most: usize) -> Result<Bytes, Status> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(encoding.inflated(message, most, |n| Status::overloaded(n.to_string())))
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(content).and_then(|()| encoder.finish()).expect("memory takes it")
    }

    #[test]
    fn both_encodings_are_inflated() {
        let content = vec![7u8; 300_000];
        assert_eq!(inflate(Encoding::Gzip, &gzip(&content), 300_000), Ok(content.clone().into()));
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&content).expect("memory takes it");
        let deflated = encoder.finish().expect("memory takes it");
        assert_eq!(inflate(Encoding::Deflate, &deflated, 300_000), Ok(content.into()));
    }

    #[test]
    fn what_grows_too_large_is_refused_on_the_way() {
        let bomb = gzip(&vec![0u8; 50_000_000]);
        let refusal = inflate(Encoding::Gzip, &bomb, 100_000).expect_err("it is too large");
        assert!(refusal.message.parse::<usize>().is_ok_and(|size| size <= 100_000 + STEP_BYTES));
    }

    #[test]
    fn noise_and_a_missing_encoding_are_refused() {
        assert_eq!(inflate(Encoding::Gzip, b"noise", 100).expect_err("noise").code, 3);
        assert_eq!(inflate(Encoding::Gzip, &gzip(b"abcdef")[..20], 100).expect_err("cut").code, 3);
        assert_eq!(inflate(Encoding::Identity, b"x", 100).expect_err("not named").code, INTERNAL);
    }
}
