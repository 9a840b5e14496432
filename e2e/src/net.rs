//! Where a socket lives: on this machine's loopback, or in a namespace of our own.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::netns::Namespace;

const CONNECT: Duration = Duration::from_secs(3);

/// Ports to listen on. The kernel gives higher ones to connections, which could come between finding one and listening.
const PORTS: Range<u16> = 20_000..32_000;
/// How many were looked at so far.
static LOOKED_AT: AtomicU32 = AtomicU32::new(0);

/// One after the other; processes begin at different places.
fn next_port() -> u16 {
    let begin = std::process::id().wrapping_mul(2_654_435_761) % u32::from(u16::MAX);
    let turn = begin + LOOKED_AT.fetch_add(1, Ordering::Relaxed) % u32::from(u16::MAX);
    let offset = turn % u32::from(PORTS.end - PORTS.start);
    PORTS.start + u16::try_from(offset).unwrap_or_default()
}

/// A place for sockets and processes.
#[derive(Clone, Debug)]
pub enum Net {
    /// The namespace this process was started in; the harness uses only its loopback.
    Host,
    /// A namespace made by the harness.
    Inside(Arc<Namespace>),
}

impl Net {
    /// Runs `job` on a thread of this place. Sockets it makes and processes it starts stay here.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        match self {
            Self::Host => job(),
            Self::Inside(namespace) => namespace.run(job),
        }
    }

    /// A connection made from here, usable from anywhere.
    pub fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.run(move || {
            let stream = TcpStream::connect_timeout(&address, CONNECT)?;
            stream.set_nodelay(true)?;
            Ok(stream)
        })
    }

    /// A listener here, usable from anywhere.
    pub fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        self.run(move || TcpListener::bind(address))
    }

    /// A port of loopback that nothing listens on now, and that is not given out twice.
    pub fn free_port(&self) -> io::Result<u16> {
        let mut result = Err(io::ErrorKind::AddrInUse.into());
        for _ in PORTS {
            let port = next_port();
            match self.bind(([127, 0, 0, 1], port).into()) {
                Ok(_) => return Ok(port),
                Err(error) => result = Err(error),
            }
        }
        result
    }
}

impl From<&Arc<Namespace>> for Net {
    fn from(namespace: &Arc<Namespace>) -> Self {
        Self::Inside(Arc::clone(namespace))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ports_differ_and_can_be_listened_on() {
        let ports: Vec<u16> = (0..50).map(|_| Net::Host.free_port().unwrap()).collect();
        let distinct: BTreeSet<&u16> = ports.iter().collect();
        assert_eq!(distinct.len(), ports.len());
        assert!(ports.iter().all(|port| PORTS.contains(port)));
        Net::Host.bind(([127, 0, 0, 1], ports[0]).into()).unwrap();
    }
}
