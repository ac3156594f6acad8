//! How a machine becomes a node: the join token and what is said with it.
//!
//! Owns the token's text form, what a joining machine asks and what it is answered. No IO: the HTTP interface carries the request,
//! [`crate::net::tls`] checks the authority, and the log decides whether the token is good (unknown, expired, used, revoked, wrong
//! secret: rejections of `AdmitNode`). The one rule: the secret leaves the joining machine only after the other side has shown the
//! authority whose fingerprint is in the token.
//!
//! The text is `hf1.<role>.<fingerprint>.<token id>.<secret and check>`: lower-case hexadecimal, no character that a shell minds. The
//! check is over everything before it, so a mistyped token is told apart from a wrong one without asking anybody.

use std::fmt;
use std::str::FromStr;

use holdfast_proto::command::Command;
use holdfast_proto::id::{Digest, Name, NodeId, TokenId, ZoneId};
use holdfast_proto::node::{NodeAddress, NodeRole, NodeSpec};
use holdfast_proto::time::Timestamp;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use crate::env::Entropy;
use crate::identity::authority::{Authority, AuthorityError, NodeKey, fingerprint};
use crate::identity::certificate::{CertificateError, node_id_of};
use crate::identity::secret::{Secret, same};
use crate::identity::{Identity, IdentityError};

/// What every token of this form begins with.
const PREFIX: &str = "hf1";
/// Bytes of the check at the token's end.
const CHECK_BYTES: usize = 4;
/// A token is 160 characters; anything much longer is not one, and is not echoed.
const TOKEN_BYTES_MAX: usize = 256;

/// Why a text is not a join token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Characters are missing, added or changed.
    #[error("the join token is mistyped or cut off: copy the whole line that `holdfast token create` printed")]
    Mistyped,
    /// It begins otherwise.
    #[error("this is not a join token (those begin with `hf1.`): make one with `holdfast token create`")]
    NotAToken,
    /// The other side is not of the token's cluster.
    #[error(
        "the join token is of another cluster than the node at {address}: run `holdfast token create` there, or join at a node of the token's cluster"
    )]
    Foreign {
        /// Where the join was sent.
        address: String,
    },
}

/// A join token as its bearer has it. Its text form is shown only by [`JoinToken::reveal`].
#[derive(Debug, Clone)]
pub struct JoinToken {
    /// The role that it admits.
    pub role: NodeRole,
    /// Fingerprint of the cluster's authority.
    pub authority: [u8; 32],
    /// Public part.
    pub id: TokenId,
    secret: Secret<[u8; 32]>,
}

impl JoinToken {
    /// Draws a new token for the cluster whose authority has this fingerprint.
    pub fn draw(role: NodeRole, authority: [u8; 32], entropy: &dyn Entropy) -> Self {
        let mut secret = [0; 32];
        entropy.fill(&mut secret);
        Self {
            role,
            authority,
            id: TokenId(entropy.random_u64()),
            secret: Secret::new(secret),
        }
    }

    /// Digest of the secret: all that the log ever holds of it.
    pub fn digest(&self) -> Digest {
        digest(self.secret.expose())
    }

    /// The whole token, to print it once or to send it.
    pub fn reveal(&self) -> String {
        let body = self.body();
        format!("{body}{}", hex::encode(check(&body)))
    }

    /// Compares the fingerprint that the token carries with an authority that the other side showed.
    pub fn expects(&self, authority: &CertificateDer<'_>) -> Result<bool, CertificateError> {
        Ok(same(&self.authority, &fingerprint(authority)?))
    }

    fn body(&self) -> String {
        format!(
            "{PREFIX}.{}.{}.{:016x}.{}",
            role_word(self.role),
            hex::encode(self.authority),
            self.id.0,
            hex::encode(self.secret.expose())
        )
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if !text.starts_with("hf1.") {
            return Err(TokenError::NotAToken);
        }
        if text.len() > TOKEN_BYTES_MAX || !text.is_ascii() || text.len() < 2 * CHECK_BYTES {
            return Err(TokenError::Mistyped);
        }
        let (body, shown) = text.split_at(text.len() - 2 * CHECK_BYTES);
        if !same(shown.as_bytes(), hex::encode(check(body)).as_bytes()) {
            return Err(TokenError::Mistyped);
        }
        let parts: Vec<&str> = body.split('.').collect();
        let [_, role, authority, id, secret] = parts[..] else {
            return Err(TokenError::Mistyped);
        };
        Ok(Self {
            role: parse_role(role).ok_or(TokenError::Mistyped)?,
            authority: bytes(authority)?,
            id: TokenId(u64::from_str_radix(id, 16).map_err(|_| TokenError::Mistyped)?),
            secret: Secret::new(bytes(secret)?),
        })
    }
}

/// The role's word in tokens and on command lines.
pub fn role_word(role: NodeRole) -> &'static str {
    match role {
        NodeRole::Replica => "replica",
        NodeRole::Worker => "worker",
        NodeRole::Witness => "witness",
    }
}

fn parse_role(word: &str) -> Option<NodeRole> {
    [NodeRole::Replica, NodeRole::Worker, NodeRole::Witness]
        .into_iter()
        .find(|role| role_word(*role) == word)
}

fn bytes(text: &str) -> Result<[u8; 32], TokenError> {
    let mut out = [0; 32];
    hex::decode_to_slice(text, &mut out).map_err(|_| TokenError::Mistyped)?;
    Ok(out)
}

fn check(body: &str) -> [u8; CHECK_BYTES] {
    let mut out = [0; CHECK_BYTES];
    out.copy_from_slice(&blake3::hash(body.as_bytes()).as_bytes()[..CHECK_BYTES]);
    out
}

fn digest(secret: &[u8]) -> Digest {
    Digest(*blake3::hash(secret).as_bytes())
}

/// What a joining machine sends to `POST /v1/join`, over a connection whose authority it has checked.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// The token's public part.
    pub token: TokenId,
    /// The token's secret, hexadecimal.
    pub secret: String,
    /// The machine's public key (SubjectPublicKeyInfo, DER), hexadecimal.
    pub public_key: String,
    /// The label that it wants.
    pub label: Name,
    /// Its failure domain.
    pub zone: ZoneId,
    /// The role that the token admits.
    pub role: NodeRole,
    /// Where it will be reached.
    pub address: NodeAddress,
}

impl fmt::Debug for JoinRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "JoinRequest {{ token: {}, label: {}, zone: {}, secret: [secret] }}",
            self.token, self.label, self.zone
        )
    }
}

/// Why a join request is not even proposed.
#[derive(Debug, thiserror::Error)]
pub enum JoinRequestError {
    /// The secret has another form.
    #[error("the secret is not 64 hexadecimal digits")]
    Secret,
    /// The public key has another form.
    #[error("the public key is not hexadecimal")]
    PublicKey,
}

impl JoinRequest {
    /// Puts the request of a machine with `key` together.
    pub fn new(token: &JoinToken, key: &NodeKey, label: Name, zone: ZoneId, address: NodeAddress) -> Self {
        Self {
            token: token.id,
            secret: hex::encode(token.secret.expose()),
            public_key: hex::encode(key.spki()),
            label,
            zone,
            role: token.role,
            address,
        }
    }

    /// The command that admits the machine; the log decides it, and with it whether the token is good.
    pub fn command(&self) -> Result<Command, JoinRequestError> {
        let mut secret = [0; 32];
        hex::decode_to_slice(&self.secret, &mut secret).map_err(|_| JoinRequestError::Secret)?;
        let spki = self.spki()?;
        let spec = NodeSpec {
            node: node_id_of(&spki),
            label: self.label.clone(),
            zone: self.zone.clone(),
            role: self.role,
            address: self.address.clone(),
            key: Digest(*blake3::hash(&spki).as_bytes()),
        };
        Ok(Command::AdmitNode {
            token: self.token,
            secret: digest(&secret),
            spec,
        })
    }

    /// The machine's public key.
    pub fn spki(&self) -> Result<Vec<u8>, JoinRequestError> {
        hex::decode(&self.public_key).map_err(|_| JoinRequestError::PublicKey)
    }
}

/// What an admitted machine is given.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JoinAnswer {
    /// Its certificate, DER, hexadecimal.
    pub certificate: String,
    /// The authority's certificate, DER, hexadecimal.
    pub authority: String,
    /// Nodes to begin with, and where they are.
    pub nodes: Vec<Peer>,
}

/// A node and where it is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The node.
    pub node: NodeId,
    /// Its address.
    pub address: NodeAddress,
}

/// Why an answer is not believed.
#[derive(Debug, thiserror::Error)]
pub enum JoinAnswerError {
    /// Not hexadecimal.
    #[error("the answer to the join request cannot be read")]
    Unreadable,
    /// The authority is not the one that the token names.
    #[error("the answer to the join request names another authority than the token")]
    AnotherAuthority,
    /// The certificate is not ours.
    #[error("the certificate in the answer to the join request is not for this machine")]
    Identity(#[source] Box<IdentityError>),
    /// The certificate cannot be read.
    #[error("the certificate in the answer to the join request is not one of a node")]
    Certificate(#[from] CertificateError),
    /// The certificate is not valid by this machine's clock.
    #[error(
        "the new certificate is valid from {} to {}, but the clock of this machine shows {}: set the clock, then join again",
        date(*not_before_s), date(*not_after_s), date(*now_s)
    )]
    ClockSkew {
        /// Valid from.
        not_before_s: i64,
        /// Valid until.
        not_after_s: i64,
        /// This machine's time.
        now_s: i64,
    },
}

impl JoinAnswer {
    /// Signs a certificate for the admitted machine.
    pub fn sign(
        request: &JoinRequest,
        identity: &Identity,
        authority: &Authority,
        nodes: Vec<Peer>,
        wall_ms: u64,
    ) -> Result<Self, AuthorityError> {
        let spki = hex::decode(&request.public_key).unwrap_or_default();
        let certificate = authority.issue(
            &spki,
            identity.cluster,
            std::slice::from_ref(&request.address.host),
            wall_ms,
        )?;
        Ok(Self {
            certificate: hex::encode(&certificate),
            authority: hex::encode(authority.certificate()),
            nodes,
        })
    }

    /// Checks the answer; gives the node's certificate and the authority's.
    pub fn verify(
        &self,
        token: &JoinToken,
        key: &NodeKey,
        wall_ms: u64,
    ) -> Result<(CertificateDer<'static>, CertificateDer<'static>), JoinAnswerError> {
        let read = |text: &str| {
            hex::decode(text)
                .map(CertificateDer::from)
                .map_err(|_| JoinAnswerError::Unreadable)
        };
        let (certificate, authority) = (read(&self.certificate)?, read(&self.authority)?);
        if !token.expects(&authority)? {
            return Err(JoinAnswerError::AnotherAuthority);
        }
        Identity::assemble(key, certificate.clone(), authority.clone())
            .map_err(|error| JoinAnswerError::Identity(Box::new(error)))?;

        let subject = crate::identity::certificate::Subject::read(&certificate)?;
        let now_s = i64::try_from(wall_ms / 1_000).unwrap_or(i64::MAX);
        if now_s < subject.not_before_s || now_s > subject.not_after_s {
            let (not_before_s, not_after_s) = (subject.not_before_s, subject.not_after_s);
            return Err(JoinAnswerError::ClockSkew {
                not_before_s,
                not_after_s,
                now_s,
            });
        }
        Ok((certificate, authority))
    }
}

/// A time in seconds of UTC as people read it.
fn date(seconds: i64) -> Timestamp {
    Timestamp(u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use holdfast_proto::id::ClusterId;

    use super::*;
    use crate::env::OsEntropy;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn token(authority: &Authority) -> JoinToken {
        JoinToken::draw(
            NodeRole::Replica,
            fingerprint(authority.certificate()).unwrap(),
            &OsEntropy,
        )
    }

    fn authority() -> Authority {
        Authority::found(ClusterId([1; 16]), NOW_MS).unwrap()
    }

    fn address() -> NodeAddress {
        NodeAddress {
            host: "10.0.0.2".into(),
            main_port: 7_400,
            lease_port: 7_401,
            bulk_port: 7_402,
        }
    }

    #[test]
    fn a_token_reads_back() {
        let drawn = token(&authority());
        let read: JoinToken = drawn.reveal().parse().unwrap();
        assert_eq!(
            (read.role, read.authority, read.id, read.digest()),
            (drawn.role, drawn.authority, drawn.id, drawn.digest())
        );
    }

    #[test]
    fn a_token_with_any_one_character_changed_or_cut_is_mistyped() {
        let text = token(&authority()).reveal();
        for place in 4..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[place] = if changed[place] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(
                changed.parse::<JoinToken>().unwrap_err(),
                TokenError::Mistyped,
                "character {place}"
            );
            assert_eq!(
                text[..place].parse::<JoinToken>().unwrap_err(),
                TokenError::Mistyped,
                "cut at {place}"
            );
        }
    }

    #[test]
    fn other_texts_are_no_tokens_and_never_panic() {
        for text in ["", "hf1", "K10abc", "hf2.x", "\u{1f600}", &"x".repeat(10_000)] {
            assert_eq!(text.parse::<JoinToken>().unwrap_err(), TokenError::NotAToken);
        }
        for text in [
            "hf1.",
            "hf1.\u{1f600}\u{1f600}",
            "hf1.a.b.c.d",
            &format!("hf1.{}", "0".repeat(10_000)),
        ] {
            assert_eq!(text.parse::<JoinToken>().unwrap_err(), TokenError::Mistyped);
        }
    }

    #[test]
    fn the_secret_is_in_no_debug_form() {
        let drawn = token(&authority());
        let secret = hex::encode(drawn.secret.expose());
        let key = NodeKey::generate().unwrap();
        let request = JoinRequest::new(&drawn, &key, "a".parse().unwrap(), "z".parse().unwrap(), address());
        assert!(!format!("{drawn:?} {request:?}").contains(&secret));
    }

    #[test]
    fn a_token_expects_its_own_authority_only() {
        let (ours, other) = (authority(), authority());
        assert!(token(&ours).expects(ours.certificate()).unwrap());
        assert!(!token(&ours).expects(other.certificate()).unwrap());
    }

    #[test]
    fn each_bad_token_says_which_command_mends_it() {
        for error in [
            TokenError::Mistyped,
            TokenError::NotAToken,
            TokenError::Foreign { address: "h:1".into() },
        ] {
            assert!(error.to_string().contains("holdfast token create"), "{error}");
        }
    }

    fn joined() -> (JoinToken, NodeKey, JoinRequest, JoinAnswer) {
        let (authority, key, own) = (authority(), NodeKey::generate().unwrap(), NodeKey::generate().unwrap());
        let cluster = ClusterId([1; 16]);
        let own_certificate = authority.issue(&own.spki(), cluster, &[], NOW_MS).unwrap();
        let identity = Identity::assemble(&own, own_certificate, authority.certificate().clone()).unwrap();
        let token = token(&authority);
        let request = JoinRequest::new(&token, &key, "gpu-2".parse().unwrap(), "b".parse().unwrap(), address());
        let answer = JoinAnswer::sign(&request, &identity, &authority, Vec::new(), NOW_MS).unwrap();
        (token, key, request, answer)
    }

    #[test]
    fn an_admitted_machine_gets_a_certificate_of_its_own() {
        let (token, key, request, answer) = joined();
        let Command::AdmitNode {
            token: shown,
            secret,
            spec,
        } = request.command().unwrap()
        else {
            panic!("another command")
        };
        assert_eq!((shown, secret, spec.node), (token.id, token.digest(), key.node_id()));
        answer.verify(&token, &key, NOW_MS).unwrap();
    }

    #[test]
    fn an_answer_for_another_machine_is_refused() {
        let (token, _, _, answer) = joined();
        assert!(matches!(
            answer.verify(&token, &NodeKey::generate().unwrap(), NOW_MS),
            Err(JoinAnswerError::Identity(_))
        ));
    }

    #[test]
    fn a_clock_ten_minutes_slow_joins_and_one_two_hours_slow_is_told_both_times() {
        let (token, key, _, answer) = joined();
        answer.verify(&token, &key, NOW_MS - 600_000).unwrap();
        let refused = answer.verify(&token, &key, NOW_MS - 7_200_000).unwrap_err().to_string();
        assert!(
            refused.contains("from 2027-01-15T07:00:00Z") && refused.contains("shows 2027-01-15T06:00:00Z"),
            "{refused}"
        );
    }
}
