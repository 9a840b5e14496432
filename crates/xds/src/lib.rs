//! The wire.
pub mod frame;
pub mod resource;
pub mod type_url;
