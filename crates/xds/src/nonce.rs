//! Nonces: which response of which stream a client answers.

use std::fmt;

/// Identifies a response. The stream's identity is part of it because clients have been seen to answer on a new stream
/// with a nonce of an older one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce {
    stream: u32,
    number: u64,
}

impl Nonce {
    /// Whether both are of one stream.
    pub(crate) fn is_same_stream(self, other: Self) -> bool {
        self.stream == other.stream
    }

    /// Reads what `Display` writes; anything else is no nonce of ours.
    pub fn parse(text: &str) -> Option<Self> {
        let (stream, number) = text.split_once('.')?;
        let nonce = Self {
            stream: u32::from_str_radix(stream, 16).ok()?,
            number: number.parse().ok()?,
        };
        // One spelling only: a nonce is opaque to clients and must come back as it was sent.
        (nonce.to_string() == text).then_some(nonce)
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}.{}", self.stream, self.number)
    }
}

/// Hands out the nonces of one stream, in rising order.
#[derive(Debug)]
pub(crate) struct Nonces(Nonce);

impl Nonces {
    pub(crate) fn new(stream: u32) -> Self {
        Self(Nonce { stream, number: 0 })
    }

    pub(crate) fn next(&mut self) -> Nonce {
        self.0.number += 1;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_reads_back() {
        let mut nonces = Nonces::new(0xab);
        let (first, second) = (nonces.next(), nonces.next());
        assert!(first < second);
        assert_eq!(first.to_string(), "000000ab.1");
        assert_eq!(Nonce::parse("000000ab.1"), Some(first));
        for bad in [
            "",
            ".",
            "ab.1",
            "000000ab.01",
            "000000ab.+1",
            "x.1",
            "000000ab.99999999999999999999999",
        ] {
            assert_eq!(Nonce::parse(bad), None, "{bad}");
        }
    }
}
