//! Ctrl-C and its relatives, so that a program can tidy up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

/// Whether the user wants to end.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Whether a signal came.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// From now on the first SIGINT, SIGTERM or SIGHUP sets a flag instead of ending the process. The second ends it: something may
/// be in the way of tidying up.
pub fn watch() -> Result<Interrupt> {
    let interrupt = Interrupt(Arc::new(AtomicBool::new(false)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("watch signals")?;
    let handler = runtime.enter();
    let mut signals = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ]
    .into_iter()
    .map(signal)
    .collect::<std::io::Result<Vec<_>>>()
    .context("watch signals")?;
    drop(handler);
    std::thread::spawn({
        let interrupt = interrupt.clone();
        move || {
            let [int, term, hangup] = &mut signals[..] else {
                unreachable!("three were made")
            };
            let mut next = || {
                runtime.block_on(async {
                    tokio::select! {
                        _ = int.recv() => {}
                        _ = term.recv() => {}
                        _ = hangup.recv() => {}
                    }
                });
            };
            next();
            interrupt.0.store(true, Ordering::Relaxed);
            next();
            std::process::exit(1);
        }
    });
    Ok(interrupt)
}
