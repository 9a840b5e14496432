//! What was made for proxies is packed when nobody is being sent much.
//!
//! Packing, and unpacking for those who connect afterwards, took a tenth of the server's time when many connect at once. They
//! wait for neither now: the memory is given back when they have been served, or after some seconds.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use pilotfish_xds::Server;

use crate::plane::Plane;

/// How often it is looked whether it is time.
const LOOK: Duration = Duration::from_millis(250);
/// It is quiet when so many looks in a row saw nobody who is being sent much, and nothing new.
const QUIET: u32 = 2;
/// Where it is never quiet, what is new waits for so many looks.
const MOST: u32 = 40;

/// When it is time. Knows no clock.
#[derive(Debug, Default)]
struct Pacer {
    waiting: usize,
    quiet: u32,
    looks: u32,
}

impl Pacer {
    /// Whether it is time, with so many resources that wait. To be asked at each look.
    fn is_due(&mut self, waiting: usize, busy: bool) -> bool {
        let changed = std::mem::replace(&mut self.waiting, waiting) != waiting;
        if waiting == 0 {
            *self = Self::default();
            return false;
        }
        self.quiet = if busy || changed { 0 } else { self.quiet + 1 };
        self.looks += 1;
        let due = self.quiet >= QUIET || self.looks >= MOST;
        if due {
            *self = Self::default();
        }
        due
    }
}

/// Packs for as long as the server runs.
pub(crate) async fn run(plane: Arc<Plane>, server: Server<Plane>) -> Result<()> {
    let mut pacer = Pacer::default();
    loop {
        tokio::time::sleep(LOOK).await;
        if !pacer.is_due(plane.unpacked(), server.is_busy()) {
            continue;
        }
        let plane = Arc::clone(&plane);
        if let Err(error) = tokio::task::spawn_blocking(move || plane.pack()).await {
            // Whoever is served is served all the same.
            tracing::error!("resources could not be packed: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks_until_due(
        pacer: &mut Pacer,
        mut look: impl FnMut(u32) -> (usize, bool),
    ) -> Option<u32> {
        (1..=MOST).find(|n| {
            let (waiting, busy) = look(*n);
            pacer.is_due(waiting, busy)
        })
    }

    #[test]
    fn it_is_time_when_it_is_quiet_and_not_while_much_is_sent_or_made() {
        let mut pacer = Pacer::default();
        assert_eq!(looks_until_due(&mut pacer, |_| (0, false)), None);
        assert_eq!(
            looks_until_due(&mut pacer, |_| (10, false)),
            Some(QUIET + 1)
        );
        // Sent until the fifth look; made until the seventh.
        let storm = |n: u32| (n.min(7) as usize, n <= 5);
        assert_eq!(looks_until_due(&mut pacer, storm), Some(7 + QUIET));
    }

    #[test]
    fn where_it_is_never_quiet_it_is_time_all_the_same() {
        let mut pacer = Pacer::default();
        assert_eq!(looks_until_due(&mut pacer, |_| (10, true)), Some(MOST));
        assert_eq!(
            looks_until_due(&mut pacer, |n| (n as usize, false)),
            Some(MOST)
        );
    }
}
