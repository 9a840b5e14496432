//! Bounds that keep one client, or all of them at once, from taking the server down.

use std::sync::Arc;
use std::time::Duration;

use crate::bundle::Pool;
use crate::session::SessionConfig;
use crate::type_url::TypeUrl;

/// The pace of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewStreams {
    /// As fast as the last ones could be configured.
    AsTheyCost,
    /// So many a second, after a burst of ten seconds' worth.
    PerSecond(u32),
}

/// Bounds and time-outs. `pilotfish serve` sets those that flags and variables speak of; the others are as here.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Proxies for which configuration is made at the same time.
    pub push_throttle: usize,
    /// How fast new streams are admitted.
    pub new_streams: NewStreams,
    /// Processors that configuring streams may take.
    pub cores: usize,
    /// New streams that may wait for admission, at least one; more are refused.
    pub max_waiting_streams: usize,
    /// Streams in all.
    pub max_concurrent_streams: u32,
    /// How long an admitted stream may take to say who it is.
    pub first_request_timeout: Duration,
    /// A client that takes nothing of what is written for this long is cut off.
    pub send_timeout: Duration,
    /// A type is pushed again only after its last response was answered or this has passed.
    pub ack_timeout: Duration,
    /// How long removed clusters are kept for routes that have not been accepted yet.
    pub removal_timeout: Duration,
    /// A stream is ended after this time, so that proxies spread over replicas again; none: never.
    pub max_age: Option<Duration>,
    /// Share of `max_age` by which streams differ, so that they do not all reconnect at once.
    pub max_age_jitter: f64,
    /// Bytes of one request.
    pub max_receive_bytes: usize,
    /// Names per type and stream.
    pub max_names: usize,
    /// Bytes of one name.
    pub max_name_bytes: usize,
    /// Types per stream.
    pub max_types: usize,
    /// How often an idle connection is probed.
    pub keepalive_interval: Duration,
    /// How long a probe may take.
    pub keepalive_timeout: Duration,
    /// On shutdown streams end spread over this time.
    pub drain_period: Duration,
    /// After the drain period, how long connections may take to close.
    pub drain_grace: Duration,
}

impl Limits {
    /// The defaults for a machine with that many cores.
    pub fn for_cores(cores: usize) -> Self {
        Self {
            push_throttle: (15 + 5 * cores).min(100),
            new_streams: NewStreams::AsTheyCost,
            cores,
            max_waiting_streams: 50_000,
            max_concurrent_streams: 100_000,
            first_request_timeout: Duration::from_secs(30),
            send_timeout: Duration::from_secs(30),
            ack_timeout: Duration::from_secs(15),
            removal_timeout: Duration::from_secs(15),
            max_age: Some(Duration::from_mins(30)),
            max_age_jitter: 0.1,
            max_receive_bytes: 4 * 1024 * 1024,
            max_names: 100_000,
            max_name_bytes: 4096,
            max_types: 32,
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
            drain_period: Duration::from_secs(3),
            drain_grace: Duration::from_secs(2),
        }
    }

    pub(crate) fn session(
        &self,
        stream: u32,
        only: Option<TypeUrl>,
        pool: Arc<Pool>,
    ) -> SessionConfig {
        SessionConfig {
            stream,
            only,
            max_names: self.max_names,
            max_name_bytes: self.max_name_bytes,
            max_types: self.max_types,
            pool,
        }
    }

    /// The age at which a stream ends.
    pub(crate) fn age(&self) -> Option<Duration> {
        let jitter = self.max_age_jitter.clamp(0.0, 1.0) * (rand::random::<f64>() * 2.0 - 1.0);
        self.max_age.map(|age| age.mul_f64(1.0 + jitter))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::for_cores(std::thread::available_parallelism().map_or(2, std::num::NonZero::get))
    }
}
