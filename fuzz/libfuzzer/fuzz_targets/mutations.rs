//! Good meshes with fields dropped, doubled, swapped and spoilt: deeper than bytes get.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| pilotfish_fuzz::mutations::run(data));
