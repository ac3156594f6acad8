//! `holdfast-trainer`: the trainer as a program of its own, as a tenant would bring it.

use std::process::ExitCode;

fn main() -> ExitCode {
    holdfast_node::trainer::main(std::env::args_os())
}
