//! Holdfast.
fn main() {}
