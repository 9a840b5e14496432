//! What the kernel says about this process; zeros where there is no `/proc`.

use std::time::{SystemTime, UNIX_EPOCH};

/// Clock ticks a second in `/proc`, the same on every Linux architecture that Rust runs on.
const TICKS: f64 = 100.0;

/// Use of resources.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Usage {
    pub(crate) resident_bytes: f64,
    pub(crate) virtual_bytes: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) start_time: f64,
    pub(crate) open_files: f64,
}

/// Use by this process now.
pub(crate) fn usage() -> Usage {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mut usage = parse(
        &read("/proc/self/status"),
        &read("/proc/self/stat"),
        &read("/proc/uptime"),
        now(),
    );
    usage.open_files = std::fs::read_dir("/proc/self/fd").map_or(0.0, |files| {
        f64::from(u32::try_from(files.count()).unwrap_or(0))
    });
    usage
}

fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

fn parse(status: &str, stat: &str, uptime: &str, now: f64) -> Usage {
    let kilobytes = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
            .unwrap_or(0.0)
            * 1024.0
    };
    // The name of the program is in parentheses and may hold anything, so count from the last one.
    let fields: Vec<f64> = stat
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_whitespace()
        .map(|f| f.parse().unwrap_or(0.0))
        .collect();
    let field = |index: usize| fields.get(index).copied().unwrap_or(0.0);
    let up: f64 = uptime
        .split_whitespace()
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0.0);
    Usage {
        resident_bytes: kilobytes("VmRSS:"),
        virtual_bytes: kilobytes("VmSize:"),
        cpu_seconds: (field(11) + field(12)) / TICKS,
        start_time: now - up + field(19) / TICKS,
        open_files: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_read() {
        let stat = "1 (a b) c) S 1 1 1 0 -1 4194304 1 1 1 1 250 50 0 0 20 0 4 0 1000 1 1";
        let usage = parse(
            "Name:\tx\nVmSize:\t  8 kB\nVmRSS:\t    4 kB\n",
            stat,
            "60.00 100.00\n",
            1000.0,
        );
        assert_eq!(
            usage,
            Usage {
                resident_bytes: 4096.0,
                virtual_bytes: 8192.0,
                cpu_seconds: 3.0,
                start_time: 950.0,
                open_files: 0.0
            }
        );
        assert_eq!(parse("", "", "", 0.0), Usage::default());
    }
}
