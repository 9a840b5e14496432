//! Any bytes as a configuration file: nothing panics, nothing takes long, and what is good stays in effect.
#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target};

fuzz_target!(|data: &[u8]| pilotfish_fuzz::documents::run(data));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    pilotfish_fuzz::documents::mutate(data, size, max_size, seed, |data, size, max_size| {
        libfuzzer_sys::fuzzer_mutate(data, size, max_size)
    })
});
