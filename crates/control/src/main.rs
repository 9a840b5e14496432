//! The `pilotfish` binary.
fn main() {}
