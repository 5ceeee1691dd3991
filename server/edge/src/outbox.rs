// SPDX-License-Identifier: AGPL-3.0-only
//! What Python wants done, for the edge's thread: commands in order, and one wake-up for many.

use std::sync::{Mutex, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::sync::Notify;

use crate::status::Status;

pub enum Command {
    Answer { id: u64, content: Bytes },
    Open { id: u64 },
    Write { id: u64, content: Bytes },
    Finish { id: u64, content: Bytes },
    Reply { id: u64, content: Bytes },
    End { id: u64, status: Status },
    More { id: u64, count: u64 },
    Serving(bool),
    Drain,
    Close,
}

#[derive(Default)]
pub struct Outbox {
    commands: Mutex<Vec<Command>>,
    filled: Notify,
}

impl Outbox {
    pub fn put(&self, command: Command) {
        self.put_all(vec![command]);
    }

    pub fn put_all(&self, mut new: Vec<Command>) {
        if new.is_empty() {
            return;
        }
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = commands.is_empty();
        commands.append(&mut new);
        drop(commands);
        if was_empty {
            self.filled.notify_one();
        }
    }

    pub async fn take(&self) -> Vec<Command> {
        self.filled.notified().await;
        std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A message as gRPC frames it: not compressed, its length, itself. None if it is too long for one.
pub fn framed(message: &[u8]) -> Option<Bytes> {
    let size = u32::try_from(message.len()).ok()?;
    let mut frame = BytesMut::with_capacity(5 + message.len());
    frame.put_u8(0);
    frame.put_u32(size);
    frame.put_slice(message);
    Some(frame.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_framed() {
        assert_eq!(framed(b"abc").as_deref(), Some(&b"\0\0\0\0\x03abc"[..]));
        assert_eq!(framed(b"").as_deref(), Some(&b"\0\0\0\0\0"[..]));
    }
}
