// SPDX-License-Identifier: AGPL-3.0-only
//! HTTP/2's frames as they pass by: their heads, and where one ends. Contents are skipped.

pub const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const CONTINUATION: u8 = 9;
/// Of SETTINGS and PING.
pub const ACK: u8 = 1;
/// Of DATA and HEADERS.
pub const END_STREAM: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub size: usize,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

pub struct Frames {
    to_skip: usize,
    head: [u8; HEAD_BYTES],
    have: usize,
}

impl Frames {
    /// What is yet to come before the first frame is skipped.
    pub fn after(preface: usize) -> Self {
        Self { to_skip: preface, head: [0; HEAD_BYTES], have: 0 }
    }

    /// Call `each` for every frame that begins in these bytes.
    pub fn pass(&mut self, mut bytes: &[u8], mut each: impl FnMut(Head)) {
        loop {
            let skipped = self.to_skip.min(bytes.len());
            self.to_skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let count = (HEAD_BYTES - self.have).min(bytes.len());
            self.head[self.have..self.have + count].copy_from_slice(&bytes[..count]);
            self.have += count;
            bytes = &bytes[count..];
            if self.have < HEAD_BYTES {
                return;
            }
            self.have = 0;
            let [a, b, c, kind, flags, stream @ ..] = self.head;
            let size = u32::from_be_bytes([0, a, b, c]) as usize;
            self.to_skip = size;
            each(Head { size, kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff });
        }
    }

    /// Whether the last frame has ended and no other has begun.
    pub fn is_between(&self) -> bool {
        self.to_skip == 0 && self.have == 0
    }
}

/// Return a GOAWAY frame that says ENHANCE_YOUR_CALM, and why.
pub fn calm(last_stream: u32, why: &str) -> Vec<u8> {
    let size = 8 + why.len();
    let mut frame = vec![0, (size >> 8) as u8, size as u8, GOAWAY, 0, 0, 0, 0, 0];
    frame.extend_from_slice(&last_stream.to_be_bytes());
    frame.extend_from_slice(&11u32.to_be_bytes());
    frame.extend_from_slice(why.as_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_found_however_the_bytes_are_cut() {
        let mut raw = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        raw.extend_from_slice(b"\0\0\x06\x04\0\0\0\0\0abcdef");
        raw.extend_from_slice(b"\0\0\0\x00\x01\0\0\0\x07");
        raw.extend_from_slice(&calm(7, "why"));
        let expected = [
            Head { size: 6, kind: SETTINGS, flags: 0, stream: 0 },
            Head { size: 0, kind: DATA, flags: END_STREAM, stream: 7 },
            Head { size: 11, kind: GOAWAY, flags: 0, stream: 0 },
        ];
        for size in 1..raw.len() {
            let mut frames = Frames::after(PREFACE_BYTES);
            let mut found = Vec::new();
            for part in raw.chunks(size) {
                frames.pass(part, |head| found.push(head));
            }
            assert_eq!(found, expected);
            assert!(frames.is_between());
        }
    }

    #[test]
    fn the_middle_of_a_frame_is_not_between() {
        let mut frames = Frames::after(0);
        frames.pass(b"\0\0\x02\0\0\0\0\0\x01a", |_| {});
        assert!(!frames.is_between());
        frames.pass(b"b", |_| {});
        assert!(frames.is_between());
        frames.pass(b"\0", |_| {});
        assert!(!frames.is_between());
    }
}
