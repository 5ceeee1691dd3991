// SPDX-License-Identifier: AGPL-3.0-only
//! How long a caller waits: the `grpc-timeout` header.

use std::time::Duration;

/// Longer than this is for ever, to a timer.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Return what the header says. What cannot be read is ignored, as gRPC's own servers do.
pub fn timeout(header: &[u8]) -> Option<Duration> {
    let (unit, digits) = header.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count = digits.iter().fold(0u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    let found = match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    };
    (found <= LONGEST).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_read() {
        for (header, seconds) in [("2H", 7200.0), ("3M", 180.0), ("4S", 4.0), ("5m", 0.005)] {
            assert_eq!(timeout(header.as_bytes()), Some(Duration::from_secs_f64(seconds)));
        }
        assert_eq!(timeout(b"12u"), Some(Duration::from_micros(12)));
        assert_eq!(timeout(b"0n"), Some(Duration::ZERO));
    }

    #[test]
    fn what_is_no_time_is_none() {
        for header in ["", "S", "5", "5s", "-1S", "123456789S", "1.5S", " 1S", "99999999H"] {
            assert_eq!(timeout(header.as_bytes()), None, "{header}");
        }
    }
}
