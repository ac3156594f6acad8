//! `holdfast-chaos`: runs simulated clusters under seeds.
fn main() {}
