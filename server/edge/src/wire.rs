// SPDX-License-Identifier: AGPL-3.0-only
//! As much of protobuf as the small requests and answers of health and reflection need.

use crate::status::Status;

#[derive(Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed,
}

/// Return the fields of a message in order. Groups are not known here.
pub fn fields(raw: &[u8]) -> Result<Vec<(u32, Value<'_>)>, Status> {
    read(raw).ok_or_else(|| {
        Status::invalid("the request cannot be decoded: it is no message of this kind")
    })
}

pub fn text(raw: &[u8]) -> Result<&str, Status> {
    std::str::from_utf8(raw)
        .map_err(|_| Status::invalid("the request cannot be decoded: a text is not UTF-8"))
}

fn read(mut raw: &[u8]) -> Option<Vec<(u32, Value<'_>)>> {
    let mut found = Vec::new();
    while !raw.is_empty() {
        let tag = u32::try_from(varint(&mut raw)?).ok()?;
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut raw)?),
            1 => skipped(&mut raw, 8)?,
            2 => {
                let size = usize::try_from(varint(&mut raw)?).ok()?;
                let (value, rest) = raw.split_at_checked(size)?;
                raw = rest;
                Value::Bytes(value)
            }
            5 => skipped(&mut raw, 4)?,
            _ => return None,
        };
        if tag >> 3 == 0 {
            return None;
        }
        found.push((tag >> 3, value));
    }
    Some(found)
}

fn skipped<'a>(raw: &mut &[u8], size: usize) -> Option<Value<'a>> {
    *raw = raw.get(size..)?;
    Some(Value::Fixed)
}

pub fn varint(raw: &mut &[u8]) -> Option<u64> {
    let mut found = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = raw.split_first()?;
        *raw = rest;
        if shift == 63 && byte > 1 {
            return None;
        }
        found |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(found);
        }
    }
    None
}

pub fn put_varint(into: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        into.push((value as u8) | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

/// Append a field of bytes.
pub fn put_bytes(into: &mut Vec<u8>, number: u32, value: &[u8]) {
    put_varint(into, u64::from(number) << 3 | 2);
    put_varint(into, value.len() as u64);
    into.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_every_kind_are_read() {
        let raw = b"\x08\x96\x01\x12\x02hi\x19\0\0\0\0\0\0\0\0\x25\0\0\0\0";
        let expected = vec![
            (1, Value::Number(150)),
            (2, Value::Bytes(b"hi")),
            (3, Value::Fixed),
            (4, Value::Fixed),
        ];
        assert_eq!(fields(raw), Ok(expected));
        assert_eq!(fields(b""), Ok(vec![]));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for raw in [
            &b"\xff\xff\xff\xff\xff"[..],
            b"\x08",
            b"\x12\x05hi",
            b"\x00\x01",
            b"\x0b",
            b"\x19\0",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        ] {
            assert_eq!(fields(raw).expect_err("it is no message").reason, "INVALID_ARGUMENT");
        }
    }

    #[test]
    fn what_is_put_is_read() {
        let mut raw = Vec::new();
        let long = [b'x'; 300];
        put_bytes(&mut raw, 20, &long);
        assert_eq!(fields(&raw), Ok(vec![(20, Value::Bytes(&long))]));
    }
}
