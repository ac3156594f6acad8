//! A value that must never be printed.
//!
//! Owns [`Secret`], which every private key, token secret and bearer token is wrapped in from the moment it is made or read. The one
//! rule: its text form is always the same word, whatever the value is.

use std::fmt;

/// Wraps a value so that neither `Debug` nor `Display` can show it.
#[derive(Clone)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Wraps `value`.
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// Lends the value. Each caller must be a place that sends, stores or compares it on purpose.
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("[secret]")
    }
}

impl<T> fmt::Display for Secret<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("[secret]")
    }
}

/// Whether two byte strings are equal, in a time that depends on their lengths alone.
pub fn same(left: &[u8], right: &[u8]) -> bool {
    // blake3's Hash compares in constant time; hashing first makes the lengths equal.
    blake3::hash(left) == blake3::hash(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_text_form_shows_the_value() {
        let secret = Secret::new("marker-7f3a".to_owned());
        assert_eq!(
            format!("{secret} {secret:?} {:?}", Some(&secret)),
            "[secret] [secret] Some([secret])"
        );
    }

    #[test]
    fn equal_bytes_are_the_same_and_others_are_not() {
        assert!(same(b"abc", b"abc"));
        assert!(!same(b"abc", b"abd"));
        assert!(!same(b"abc", b"ab"));
    }
}
