//! Access tokens as their bearers have them.
//!
//! Owns the text form `hfa.<id>.<secret>`, all lower-case hexadecimal. The log knows the id and the digest of the secret; the secret is
//! shown once, when the token is made. The one rule: the whole text leaves this type only through [`Bearer::reveal`].

use std::fmt;
use std::str::FromStr;

use holdfast_proto::id::{Digest, TokenId};

use crate::env::Entropy;
use crate::identity::secret::{Secret, same};

const PREFIX: &str = "hfa";
const SECRET_BYTES: usize = 32;

/// An access token with its secret.
#[derive(Debug, Clone)]
pub struct Bearer {
    /// Public part.
    pub id: TokenId,
    secret: Secret<[u8; SECRET_BYTES]>,
}

/// A text that is not an access token. It does not say what the text was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is not an access token (those begin with `hfa.`): copy the whole token again, or make one with `holdfast token create`"
)]
pub struct BearerError;

impl Bearer {
    /// Draws a new token.
    pub fn draw(entropy: &dyn Entropy) -> Self {
        let mut secret = [0; SECRET_BYTES];
        entropy.fill(&mut secret);
        Self {
            id: TokenId(entropy.random_u64()),
            secret: Secret::new(secret),
        }
    }

    /// Digest of the secret: all that the log ever holds of it.
    pub fn digest(&self) -> Digest {
        Digest(*blake3::hash(self.secret.expose()).as_bytes())
    }

    /// Whether `digest` is of this token's secret, in a time that does not depend on where they differ.
    pub fn proves(&self, digest: &Digest) -> bool {
        same(&self.digest().0, &digest.0)
    }

    /// The whole token, to print it once, store it for its owner, or send it.
    pub fn reveal(&self) -> Secret<String> {
        Secret::new(format!(
            "{PREFIX}.{:016x}.{}",
            self.id.0,
            hex::encode(self.secret.expose())
        ))
    }
}

impl FromStr for Bearer {
    type Err = BearerError;

    fn from_str(text: &str) -> Result<Self, BearerError> {
        let mut parts = text.trim().split('.');
        let (Some(PREFIX), Some(id), Some(secret), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(BearerError);
        };
        let mut id_bytes = [0; 8];
        hex::decode_to_slice(id, &mut id_bytes).map_err(|_| BearerError)?;
        let mut bytes = [0; SECRET_BYTES];
        hex::decode_to_slice(secret, &mut bytes).map_err(|_| BearerError)?;
        Ok(Self {
            id: TokenId(u64::from_be_bytes(id_bytes)),
            secret: Secret::new(bytes),
        })
    }
}

impl fmt::Display for Bearer {
    /// Writes the public part alone.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(out)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::env::OsEntropy;

    #[test]
    fn a_token_reads_back_from_its_text_and_proves_its_digest() {
        let bearer = Bearer::draw(&OsEntropy);
        let read: Bearer = bearer.reveal().expose().parse().unwrap();
        assert_eq!(read.id, bearer.id);
        assert!(read.proves(&bearer.digest()));
        assert!(!Bearer::draw(&OsEntropy).proves(&bearer.digest()));
    }

    #[test]
    fn texts_that_are_not_tokens_are_refused_without_being_repeated() {
        let marker = "7f3a7f3a7f3a7f3a";
        for text in [
            "",
            "hfa",
            "hfa..",
            &format!("hfa.{marker}.{marker}"),
            &format!("hf1.{marker}.{}", "a".repeat(64)),
            "hfa.ä.b",
        ] {
            let error = text.parse::<Bearer>().unwrap_err();
            assert!(!error.to_string().contains(marker));
        }
    }

    #[test]
    fn no_text_form_but_reveal_shows_the_secret() {
        let bearer = Bearer::draw(&OsEntropy);
        let text = bearer.reveal().expose().clone();
        let secret = text.rsplit('.').next().unwrap();
        assert!(!format!("{bearer} {bearer:?} {:?}", bearer.reveal()).contains(secret));
    }
}
