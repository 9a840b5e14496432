//! Harness of the end-to-end tests and the demo: stock Envoys, real sockets, real interception.
//!
//! Everything happens on loopback or in network namespaces that the harness made itself. A namespace belongs to the
//! process that made it, so tests do not see each other, and dropping a value undoes what its constructor did.

pub mod admin;
pub mod backend;
pub mod case;
pub mod client;
pub mod config;
pub mod control;
pub mod crowd;
pub mod endpoints;
pub mod envoy;
pub mod fabric;
pub mod http;
pub mod intercept;
pub mod interrupt;
pub mod kube;
pub mod load;
pub mod mesh;
pub mod net;
pub mod netns;
pub mod process;
pub mod proxy;
pub mod relay;
pub mod tls;
pub mod tools;
pub mod traffic;
pub mod wait;
pub mod xds;
pub mod yaml;
