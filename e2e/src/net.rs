//! Where a socket lives: on this machine's loopback, or in a namespace of our own.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::netns::Namespace;

const CONNECT: Duration = Duration::from_secs(3);

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

    /// A port of loopback that nothing listens on now.
    pub fn free_port(&self) -> io::Result<u16> {
        Ok(self.bind(([127, 0, 0, 1], 0).into())?.local_addr()?.port())
    }
}

impl From<&Arc<Namespace>> for Net {
    fn from(namespace: &Arc<Namespace>) -> Self {
        Self::Inside(Arc::clone(namespace))
    }
}
