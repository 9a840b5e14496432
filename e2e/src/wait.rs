//! Waiting for something to become true, with a reason when it does not.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How often a condition is looked at. Short, because tests wait hundreds of times.
const STEP: Duration = Duration::from_millis(10);

/// How long anything may take that is expected at once: on a machine that does much else, too. What waits for less waits for
/// a reason, which it names.
pub const SOON: Duration = Duration::from_mins(1);

/// Calls `probe` until it returns `Ok`, for at most `limit`; the last error says what was missing.
pub fn until<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match probe() {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() > limit => {
                bail!("{what}: not within {limit:?}: {error:#}")
            }
            Err(_) => std::thread::sleep(STEP),
        }
    }
}
