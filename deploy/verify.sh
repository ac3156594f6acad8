#!/usr/bin/env bash
# The read-only gate: format, lints, documentation, tests (tidy checks among them). Changes nothing, fails on anything.
# usage: deploy/verify.sh [--tests-ran]   (--tests-ran: the tests have just passed on this tree, do not repeat them)
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '== %s\n' "$*"; "$@"; }
case "${1-}" in
    '' | --tests-ran) ;;
    *) echo "usage: deploy/verify.sh [--tests-ran]" >&2; exit 64 ;;
esac

step cargo fmt --all -- --check
step cargo clippy --workspace --all-targets --locked -- -D warnings
# Private items are documented too, so links to them hold.
RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" step cargo doc --workspace --no-deps --locked --document-private-items
[ "${1-}" = --tests-ran ] || step cargo test --workspace --locked
echo "== all green"
