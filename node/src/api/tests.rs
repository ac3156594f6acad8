//! The interface against a real machine, over real TLS.

#![allow(clippy::unwrap_used)]

pub(crate) mod world;

mod document;
mod past;
mod rights;
mod schema;
mod stream;
mod subscription;
mod writes;
