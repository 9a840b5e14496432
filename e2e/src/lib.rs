//! Harness of the end-to-end tests and the demo.
