// SPDX-License-Identifier: AGPL-3.0-only
//! Taking an EnqueueRequest apart without decoding what is only passed on, as the Python intake
//! does. Only bytes that protobuf would write again as they are (but for the order of headers) are
//! taken apart; whatever is written in another way is left to Python, which decides what it means.

use std::collections::HashSet;
use std::ops::Range;

// Tags of EnqueueRequest.
const QUEUE: u8 = 0x0a;
const HEADER: u8 = 0x12;
const PAYLOAD: u8 = 0x1a;
const FAIRNESS_KEY: u8 = 0x22;
const WEIGHT: u8 = 0x28;
const THROTTLE_KEY: u8 = 0x32;
const THROTTLE_COST: u8 = 0x38;
const DELAY: u8 = 0x40;
const DELIVER_AT: u8 = 0x4a;
const TTL: u8 = 0x50;
const IDEMPOTENCY_KEY: u8 = 0x5a;
/// Beyond this many headers, looking at all pairs of keys takes longer than a table.
const FEW: usize = 16;

/// Where the parts of a request are.
#[derive(Debug, PartialEq, Eq)]
pub struct Draft {
    pub queue: Range<usize>,
    /// Headers and payload as they are stored and sent.
    pub content: Range<usize>,
    /// What the enqueue asks for.
    pub terms: Range<usize>,
    pub payload_bytes: usize,
    pub headers: usize,
    pub header_bytes: usize,
}

/// Take a request apart; None if it is not written as protobuf would.
pub fn draft(raw: &[u8]) -> Option<Draft> {
    Scan { raw, at: 0, end: raw.len() }.draft()
}

struct Scan<'a> {
    raw: &'a [u8],
    at: usize,
    end: usize,
}

// In all of these the outer None means that the bytes are not canonical, the inner one that the
// next field is another one.
impl Scan<'_> {
    fn draft(mut self) -> Option<Draft> {
        let queue = self.text(QUEUE)?.unwrap_or(self.at..self.at);
        let start = self.at;
        let headers = self.headers()?;
        let header_bytes = self.at - start;
        let payload = self.field(PAYLOAD)?;
        if payload.as_ref().is_some_and(Range::is_empty) {
            return None;
        }
        let content = start..self.at;
        self.text(FAIRNESS_KEY)?;
        self.number(WEIGHT, u32::MAX.into())?;
        while let Some(key) = self.field(THROTTLE_KEY)? {
            self.utf8(key)?;
        }
        self.number(THROTTLE_COST, u32::MAX.into())?;
        self.number(DELAY, u64::MAX)?;
        if let Some(time) = self.field(DELIVER_AT)? {
            Scan { raw: self.raw, at: time.start, end: time.end }.timestamp()?;
        }
        self.number(TTL, u64::MAX)?;
        self.text(IDEMPOTENCY_KEY)?;
        let payload_bytes = payload.map_or(0, |payload| payload.len());
        let terms = content.end..self.end;
        let is_whole = self.at == self.end;
        is_whole.then_some(Draft { queue, content, terms, payload_bytes, headers, header_bytes })
    }

    /// Pass over the headers, each a key and a value, no key twice; return how many there are.
    fn headers(&mut self) -> Option<usize> {
        let mut keys: Vec<&[u8]> = Vec::new();
        let mut table = HashSet::new();
        while let Some(entry) = self.field(HEADER)? {
            let mut entry = Scan { raw: self.raw, at: entry.start, end: entry.end };
            let key = entry.field(QUEUE)??;
            let value = entry.field(HEADER)??;
            if entry.at != entry.end {
                return None;
            }
            entry.utf8(key.clone())?;
            entry.utf8(value)?;
            let key = &self.raw[key];
            if keys.len() < FEW {
                if keys.contains(&key) {
                    return None;
                }
            } else {
                if table.is_empty() {
                    table.extend(keys.iter().copied());
                }
                if !table.insert(key) {
                    return None;
                }
            }
            keys.push(key);
        }
        Some(keys.len())
    }

    fn timestamp(mut self) -> Option<()> {
        self.number(0x08, u64::MAX)?;
        if let Some(nanoseconds) = self.number(0x10, u64::MAX)? {
            // An int32, which is written with its sign in all 64 bits.
            i32::try_from(nanoseconds as i64).ok()?;
        }
        (self.at == self.end).then_some(())
    }

    /// A text that is left out when it is empty.
    fn text(&mut self, tag: u8) -> Option<Option<Range<usize>>> {
        let Some(found) = self.field(tag)? else { return Some(None) };
        if found.is_empty() {
            return None;
        }
        self.utf8(found.clone())?;
        Some(Some(found))
    }

    /// A number that is left out when it is zero.
    fn number(&mut self, tag: u8, most: u64) -> Option<Option<u64>> {
        if self.at >= self.end || self.raw[self.at] != tag {
            return Some(None);
        }
        self.at += 1;
        let value = self.varint()?;
        (value != 0 && value <= most).then_some(Some(value))
    }

    fn field(&mut self, tag: u8) -> Option<Option<Range<usize>>> {
        if self.at >= self.end || self.raw[self.at] != tag {
            return Some(None);
        }
        self.at += 1;
        let size = usize::try_from(self.varint()?).ok()?;
        let start = self.at;
        if size > self.end - start {
            return None;
        }
        self.at = start + size;
        Some(Some(start..self.at))
    }

    /// A varint of as few bytes as it can have.
    fn varint(&mut self) -> Option<u64> {
        let mut found = 0u64;
        for shift in (0..64).step_by(7) {
            if self.at >= self.end {
                return None;
            }
            let byte = self.raw[self.at];
            self.at += 1;
            if shift == 63 && byte > 1 {
                return None;
            }
            found |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return (byte != 0 || shift == 0).then_some(found);
            }
        }
        None
    }

    fn utf8(&self, range: Range<usize>) -> Option<()> {
        std::str::from_utf8(&self.raw[range]).ok().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_cut_at_its_seams() {
        let raw = b"\x0a\x01q\x12\x06\x0a\x01k\x12\x01v\x1a\x02pp\x22\x01f\x28\x05";
        let found = draft(raw).expect("it is canonical");
        assert_eq!(&raw[found.queue.clone()], b"q");
        assert_eq!(&raw[found.content.clone()], b"\x12\x06\x0a\x01k\x12\x01v\x1a\x02pp");
        assert_eq!(&raw[found.terms.clone()], b"\x22\x01f\x28\x05");
        assert_eq!((found.payload_bytes, found.headers, found.header_bytes), (2, 1, 8));
    }

    #[test]
    fn nothing_is_a_request_too() {
        let found = draft(b"").expect("it is canonical");
        assert_eq!((found.queue, found.content, found.terms), (0..0, 0..0, 0..0));
    }

    #[test]
    fn what_protobuf_would_write_otherwise_is_left_to_python() {
        for raw in [
            &b"\x0a\x00"[..],                                    // an empty text is left out
            b"\x0a\x81\x00q",                                    // a longer varint than needed
            b"\x1a\x01p\x0a\x01q",                               // out of order
            b"\x0a\x01q\x0a\x01q",                               // twice
            b"\x0a\x01\xff",                                     // not UTF-8
            b"\x1a\x00",                                         // an empty payload
            b"\x28\x00",                                         // a zero
            b"\x28\x80\x80\x80\x80\x10",                         // more than 32 bits
            b"\x60\x01",                                         // an unknown field
            b"\x12\x03\x0a\x01k",                                // a header without a value
            b"\x12\x04\x0a\x00\x12\x00\x12\x04\x0a\x00\x12\x00", // a key twice
            b"\x12\x08\x0a\x01k\x12\x01v\x18\x01",               // a field inside a header
            b"\x4a\x02\x10\x00",                                 // a zero in a time
            b"\x4a\x06\x10\xff\xff\xff\xff\x0f",                 // an int32 without its sign
            b"\x0a\x05q",                                        // cut off
        ] {
            assert_eq!(draft(raw), None, "{raw:?}");
        }
    }

    #[test]
    fn many_headers_are_compared_too() {
        let entry = |n: u8| [0x12, 0x05, 0x0a, 0x01, b'0' + n, 0x12, 0x00];
        let mut raw: Vec<u8> = (0..40).flat_map(entry).collect();
        assert_eq!(draft(&raw).map(|found| found.headers), Some(40));
        raw.extend(entry(20));
        assert_eq!(draft(&raw), None);
    }
}
