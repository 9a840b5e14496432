//! What is sent, as JSON, for the shapes that make up most of a mesh.

mod clusters;
mod endpoints;
mod listeners;
mod routes;
mod splice;
mod stock;
mod support;
mod validate;
