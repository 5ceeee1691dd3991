// SPDX-License-Identifier: AGPL-3.0-only
//! Requests that were compressed. They are inflated a little at a time, so that a large one does
//! not hold up the others, and never beyond what a request may have.

use std::io::{BufRead, ErrorKind, Read};

use bytes::Bytes;
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};

use crate::status::{Status, INTERNAL};

/// As much as takes a fraction of a millisecond, of what comes out and of what goes in: there are
/// messages of which nothing comes out.
const STEP_BYTES: usize = 64 * 1024;
const STEP_INPUT_BYTES: usize = 4 * 1024;

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

    /// Inflate a message. `grown` hears how large it is by now, and may refuse to go on.
    pub async fn inflated(
        self,
        message: &[u8],
        mut grown: impl FnMut(usize) -> Result<(), Status>,
    ) -> Result<Bytes, Status> {
        let message = Steps { left: message, step: STEP_INPUT_BYTES };
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
            let read = source.read(&mut found[begin..]);
            found.truncate(begin + read.as_ref().copied().unwrap_or_default());
            match read {
                Ok(0) => return Ok(found.into()),
                Ok(_) => grown(found.len())?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => {
                    return Err(Status::invalid(
                        "the request cannot be decoded: it is not what its encoding says",
                    ));
                }
            }
            tokio::task::yield_now().await;
        }
    }
}

/// A message that is read a step at a time: between two of them reading it would block.
struct Steps<'a> {
    left: &'a [u8],
    step: usize,
}

impl Read for Steps<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.fill_buf()?.read(into)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Steps<'_> {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        if self.step == 0 {
            self.step = STEP_INPUT_BYTES;
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(&self.left[..self.left.len().min(self.step)])
    }

    fn consume(&mut self, count: usize) {
        self.left = &self.left[count..];
        self.step -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use flate2::Compression;
    use std::future::{poll_fn, Future};
    use std::io::Write;
    use std::pin::pin;

    fn inflate(encoding: Encoding, message: &[u8], most: usize) -> Result<Bytes, Status> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(encoding.inflated(message, |size| match size > most {
            true => Err(Status::overloaded(size.to_string())),
            false => Ok(()),
        }))
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
    fn a_message_of_many_empty_parts_is_taken_in_steps() {
        let parts = gzip(b"").repeat(1000);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let steps = runtime.block_on(async {
            let mut inflating = pin!(Encoding::Gzip.inflated(&parts, |_| Ok(())));
            let mut count = 0;
            poll_fn(|context| {
                count += 1;
                inflating.as_mut().poll(context).map(|found| assert_eq!(found, Ok(Bytes::new())))
            })
            .await;
            count
        });
        assert!(steps >= parts.len() / STEP_INPUT_BYTES, "{steps}");
    }

    #[test]
    fn a_message_of_several_parts_is_whole_however_it_is_cut() {
        let noise: Vec<u8> =
            (0..40_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for size in [0, 1, 17, STEP_INPUT_BYTES - 20, STEP_INPUT_BYTES, 9999, 40_000] {
            let message = [gzip(&noise[..size]), gzip(b""), gzip(&noise)].concat();
            let expected = [&noise[..size], &noise].concat();
            assert_eq!(inflate(Encoding::Gzip, &message, 90_000), Ok(expected.into()), "{size}");
        }
    }

    #[test]
    fn noise_and_a_missing_encoding_are_refused() {
        assert_eq!(inflate(Encoding::Gzip, b"noise", 100).expect_err("noise").code, 3);
        assert_eq!(inflate(Encoding::Gzip, &gzip(b"abcdef")[..20], 100).expect_err("cut").code, 3);
        assert_eq!(inflate(Encoding::Identity, b"x", 100).expect_err("not named").code, INTERNAL);
    }
}
