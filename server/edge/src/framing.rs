// SPDX-License-Identifier: AGPL-3.0-only
//! gRPC's framing of requests: a flag, a length, a message, as often as there are messages. Bytes
//! are taken from HTTP/2 only when somebody asks for them, and its windows do the rest.

use std::future::poll_fn;
use std::pin::Pin;

use bytes::{Buf, Bytes};
use http_body::Body;

use crate::status::{Status, CANCELLED, INTERNAL};

#[derive(Debug, PartialEq, Eq)]
pub struct Prefix {
    pub is_compressed: bool,
    pub size: usize,
}

pub struct Messages<B> {
    body: B,
    chunk: Bytes,
}

impl<B: Body<Data = Bytes> + Unpin> Messages<B> {
    pub fn new(body: B) -> Self {
        Self { body, chunk: Bytes::new() }
    }

    /// Return the prefix of the next message, or None if there is none.
    pub async fn prefix(&mut self) -> Result<Option<Prefix>, Status> {
        let mut head = [0u8; 5];
        let mut have = 0;
        while have < head.len() {
            if self.chunk.is_empty() && !self.fill().await? {
                return if have == 0 { Ok(None) } else { Err(ended()) };
            }
            let count = self.chunk.len().min(head.len() - have);
            self.chunk.copy_to_slice(&mut head[have..have + count]);
            have += count;
        }
        let [flag, size @ ..] = head;
        if flag > 1 {
            return Err(Status::new(INTERNAL, format!("a message has the flags {flag}"), ""));
        }
        let size = u32::from_be_bytes(size) as usize;
        Ok(Some(Prefix { is_compressed: flag == 1, size }))
    }

    /// Add what comes next of a message to what has come of it. It is a copy: HTTP/2's buffer is
    /// larger. Nothing is lost if this is not waited for to its end.
    pub async fn part(&mut self, found: &mut Vec<u8>, size: usize) -> Result<(), Status> {
        if self.chunk.is_empty() && !self.fill().await? {
            return Err(ended());
        }
        let part = self.chunk.split_to(self.chunk.len().min(size - found.len()));
        found.extend_from_slice(&part);
        if self.chunk.is_empty() {
            self.chunk = Bytes::new();
        }
        Ok(())
    }

    async fn fill(&mut self) -> Result<bool, Status> {
        loop {
            let frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await;
            let Some(frame) = frame else { return Ok(false) };
            let frame = frame
                .map_err(|_| Status::new(CANCELLED, "the caller left before its request", ""))?;
            match frame.into_data() {
                Ok(data) if !data.is_empty() => {
                    self.chunk = data;
                    return Ok(true);
                }
                _ => {}
            }
        }
    }
}

pub fn ended() -> Status {
    Status::invalid("the call ended before its request")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Frame;
    use std::convert::Infallible;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    struct Parts(Vec<Bytes>);

    impl Body for Parts {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(if self.0.is_empty() {
                None
            } else {
                Some(Ok(Frame::data(self.0.remove(0))))
            })
        }
    }

    fn run<F: std::future::Future>(future: F) -> F::Output {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("nothing here waits"),
        }
    }

    fn parted(raw: &[u8], size: usize) -> Messages<Parts> {
        Messages::new(Parts(raw.chunks(size).map(Bytes::copy_from_slice).collect()))
    }

    async fn message(messages: &mut Messages<Parts>, size: usize) -> Result<Vec<u8>, Status> {
        let mut found = Vec::new();
        while found.len() < size {
            messages.part(&mut found, size).await?;
        }
        Ok(found)
    }

    #[test]
    fn messages_are_found_however_they_are_cut() {
        let raw = b"\0\0\0\0\x03abc\x01\0\0\0\0\0\0\0\0\x01z";
        for size in 1..=raw.len() {
            let mut messages = parted(raw, size);
            run(async {
                for (flag, text) in [(false, &b"abc"[..]), (true, b""), (false, b"z")] {
                    let prefix =
                        messages.prefix().await.expect("it is whole").expect("it is there");
                    assert_eq!((prefix.is_compressed, prefix.size), (flag, text.len()));
                    let found = message(&mut messages, prefix.size).await;
                    assert_eq!(found.expect("it is whole"), text);
                }
                assert_eq!(messages.prefix().await, Ok(None));
            });
        }
    }

    #[test]
    fn what_ends_early_is_refused() {
        run(async {
            assert_eq!(parted(b"\0\0\0", 2).prefix().await, Err(ended()));
            assert_eq!(message(&mut parted(b"abc", 2), 4).await, Err(ended()));
            assert_eq!(parted(b"", 1).prefix().await, Ok(None));
        });
    }

    #[test]
    fn unknown_flags_are_refused() {
        let refusal = run(parted(b"\x02\0\0\0\0", 9).prefix()).expect_err("no such flag");
        assert_eq!(refusal.code, INTERNAL);
    }
}
