//! Durations as the API writes them: `1.5s`, `100ms`, `1h30m`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A duration that was written as text; never negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Duration(pub std::time::Duration);

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration {text:?}: {reason}")]
pub struct DurationError {
    text: String,
    reason: &'static str,
}

impl Duration {
    /// A duration of whole milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(std::time::Duration::from_millis(millis))
    }

    /// A duration of whole seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(std::time::Duration::from_secs(secs))
    }

    /// The length as the standard library's type.
    pub const fn get(self) -> std::time::Duration {
        self.0
    }
}

impl From<Duration> for std::time::Duration {
    fn from(value: Duration) -> Self {
        value.0
    }
}

impl From<std::time::Duration> for Duration {
    fn from(value: std::time::Duration) -> Self {
        Self(value)
    }
}

/// Nanoseconds in one `unit`.
fn unit_nanos(unit: &str) -> Option<u128> {
    Some(match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

impl FromStr for Duration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |reason| DurationError {
            text: text.chars().take(64).collect(),
            reason,
        };
        if text.len() > 64 {
            return Err(fail("too long"));
        }
        let mut rest = text.strip_prefix('+').unwrap_or(text);
        if rest.starts_with('-') {
            return Err(fail("must not be negative"));
        }
        if rest == "0" {
            return Ok(Self::default());
        }
        if rest.is_empty() {
            return Err(fail("empty"));
        }
        let mut total: u128 = 0;
        while !rest.is_empty() {
            let whole_end = rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len());
            let (whole, after) = rest.split_at(whole_end);
            let (fraction, after) = match after.strip_prefix('.') {
                Some(after) => after.split_at(
                    after
                        .find(|c: char| !c.is_ascii_digit())
                        .unwrap_or(after.len()),
                ),
                None => ("", after),
            };
            if whole.is_empty() && fraction.is_empty() {
                return Err(fail("expected a number"));
            }
            let unit_end = after
                .find(|c: char| c.is_ascii_digit() || c == '.')
                .unwrap_or(after.len());
            let (unit, after) = after.split_at(unit_end);
            let scale = match unit {
                "" => return Err(fail("missing unit, such as \"s\"")),
                unit => unit_nanos(unit).ok_or_else(|| fail("unknown unit; use ms, s, m or h"))?,
            };
            let count: u128 = if whole.is_empty() {
                0
            } else {
                whole.parse().map_err(|_| fail("out of range"))?
            };
            total = count
                .checked_mul(scale)
                .and_then(|nanos| total.checked_add(nanos))
                .ok_or_else(|| fail("out of range"))?;
            if !fraction.is_empty() {
                // Digits beyond the nanosecond are cut off.
                let digits = &fraction[..fraction.len().min(18)];
                let value: u128 = digits.parse().map_err(|_| fail("out of range"))?;
                total += value * scale / 10_u128.pow(digits.len() as u32);
            }
            rest = after;
        }
        // The limit of a protobuf duration: about ten thousand years.
        let secs = u64::try_from(total / 1_000_000_000).map_err(|_| fail("out of range"))?;
        if secs > 315_576_000_000 {
            return Err(fail("out of range"));
        }
        Ok(Self(std::time::Duration::new(
            secs,
            (total % 1_000_000_000) as u32,
        )))
    }
}

/// The protobuf form: seconds with as many decimals as needed.
impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (secs, nanos) = (self.0.as_secs(), self.0.subsec_nanos());
        match nanos {
            0 => write!(f, "{secs}s"),
            n if n % 1_000_000 == 0 => write!(f, "{secs}.{:03}s", n / 1_000_000),
            n if n % 1_000 == 0 => write!(f, "{secs}.{:06}s", n / 1_000),
            n => write!(f, "{secs}.{n:09}s"),
        }
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Duration;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"10s\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
