//! Envoy's API as Rust types and descriptors, generated at build time.
