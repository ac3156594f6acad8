//! Holdfast.
