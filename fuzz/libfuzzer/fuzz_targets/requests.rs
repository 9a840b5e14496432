//! Any sequence of requests against a session of either variant while the configuration changes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| pilotfish_fuzz::requests::run(data));
