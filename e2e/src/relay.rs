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
