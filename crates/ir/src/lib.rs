//! What a proxy is to be given, as plain data.
//!
//! Everything here is `Eq + Hash`: equal values emit equal bytes, so a value is its own cache key. Nothing here knows
//! Envoy's wire format, the objects it was made from, or the proxy that asked; what differs between builds of Envoy is
//! the emitter's business.

pub mod cluster;
pub mod dns;
pub mod endpoint;
pub mod listener;
pub mod name;
pub mod route;
pub mod secret;
pub mod tls;

pub use cluster::Cluster;
pub use endpoint::EndpointSet;
pub use listener::Listener;
pub use name::{ClusterName, Text};
pub use route::{RouteTable, VirtualHost};
pub use secret::Secret;

/// A span of time in milliseconds; the wire knows no finer unit that matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// Whole seconds.
    pub const fn secs(s: u64) -> Self {
        Self(s * 1000)
    }
}

impl From<std::time::Duration> for Millis {
    fn from(d: std::time::Duration) -> Self {
        Self(u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A number as the user wrote it, equal to another if their bits are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Real(u64);

impl From<f64> for Real {
    fn from(value: f64) -> Self {
        Self(value.to_bits())
    }
}

impl From<Real> for f64 {
    fn from(value: Real) -> Self {
        Self::from_bits(value.0)
    }
}

/// A share of traffic, in the unit in which it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Share {
    /// Whole percents.
    Percent(u32),
    /// Finer.
    Millionths(Millionths),
}

impl Share {
    /// No traffic at all.
    pub fn is_none(self) -> bool {
        matches!(self, Self::Percent(0) | Self::Millionths(Millionths(0)))
    }
}

/// A share of traffic in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Millionths(pub u32);

impl Millionths {
    /// From a percentage; what is outside 0..=100 is clamped, what is finer is cut off.
    #[allow(clippy::cast_sign_loss, reason = "clamped to 0..=100 before the cast")]
    pub fn from_percent(p: f64) -> Self {
        Self((p.clamp(0.0, 100.0) * 10_000.0) as u32)
    }
}
