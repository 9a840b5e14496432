//! What is sent, as JSON, for the shapes that make up most of a mesh.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::needless_pass_by_value,
    reason = "tests"
)]

mod clusters;
mod cost;
mod endpoints;
mod features;
mod listeners;
mod routes;
mod splice;
mod stock;
mod support;
mod validate;
