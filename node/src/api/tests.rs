//! The interface against a real machine, over real TLS.

#![allow(clippy::unwrap_used)]

pub(crate) mod world;

mod document;
mod rights;
mod stream;
mod writes;
