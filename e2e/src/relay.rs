//! Carries connections from one place to another, so that a person can reach what runs inside a namespace.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result};

use crate::net::Net;

/// A listener that connects whoever comes to somewhere else. Dropping it closes the listener.
#[derive(Debug)]
pub struct Relay {
    net: Net,
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Relay {
    /// Carries `listen` in `from` to `target` in `to`.
    pub fn start(
        from: &Net,
        listen: impl Into<SocketAddr>,
        to: &Net,
        target: impl Into<SocketAddr>,
    ) -> Result<Self> {
        let (listen, target) = (listen.into(), target.into());
        let listener = from
            .bind(listen)
            .with_context(|| format!("relay: bind {listen}"))?;
        let address = listener.local_addr()?;
        let stopped = Arc::new(AtomicBool::new(false));
        let acceptor = std::thread::spawn({
            let (stopped, to) = (Arc::clone(&stopped), to.clone());
            move || {
                for stream in listener.incoming() {
                    if stopped.load(Ordering::Relaxed) {
                        return;
                    }
                    // Whoever cannot be served sees a closed connection.
                    let _served = stream.and_then(|near| join(near, to.connect(target)?));
                }
            }
        });
        Ok(Self {
            net: from.clone(),
            address,
            stopped,
            acceptor: Some(acceptor),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        let _woken = self.net.connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ended = acceptor.join();
        }
    }
}

fn join(near: TcpStream, far: TcpStream) -> io::Result<()> {
    let (near_reader, far_reader) = (near.try_clone()?, far.try_clone()?);
    std::thread::spawn(move || carry(near_reader, far));
    std::thread::spawn(move || carry(far_reader, near));
    Ok(())
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    // Either end closing, cleanly or not, closes the other.
    let _ended = io::copy(&mut from, &mut to);
    let _closed = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::backend::{Backend, Identity};
    use crate::client::Client;

    const ANY: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

    #[test]
    fn a_client_reaches_a_backend_through_a_relay_and_keeps_its_connection() {
        let backend =
            Backend::start(&Net::Host, ANY, Identity::new("books", "v1", "books-1")).unwrap();
        let relay = Relay::start(&Net::Host, ANY, &Net::Host, backend.address()).unwrap();
        let mut client = Client::new(&Net::Host, relay.address(), "books");
        for path in ["/a", "/b"] {
            let answer = client.get(path).unwrap().json();
            assert_eq!(
                (answer["instance"].as_str(), answer["path"].as_str()),
                (Some("books-1"), Some(path))
            );
        }
        assert_eq!(
            (client.connections(), client.resent(), backend.requests()),
            (1, 0, 2)
        );
    }

    #[test]
    fn a_backend_that_fails_says_why() {
        let extra = |_: &crate::http::Message| anyhow::bail!("the catalog is closed");
        let identity = Identity::new("books", "v1", "books-1");
        let backend =
            Backend::start_with(&Net::Host, ANY, identity, Some(Box::new(extra))).unwrap();
        let response = Client::new(&Net::Host, backend.address(), "books")
            .get("/")
            .unwrap();
        assert_eq!(
            (response.status, response.json()["error"].as_str()),
            (502, Some("the catalog is closed"))
        );
    }
}
