//! Names of things: clusters, nodes, leases, devices, tenants, tokens, requests, and the counters that fence them.
//!
//! An id is never reused and never derived from a name that a person can change. Ids made by the log carry its index,
//! so two replicas cannot name one thing differently.

use std::fmt;
use std::str::FromStr;

use crate::limits;

/// A text that is not the id it was taken for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}")]
pub struct ParseIdError {
    /// The id that was expected.
    pub what: &'static str,
    /// The text that was given, at most its first 64 characters.
    pub text: String,
}

hex_bytes!(
    /// Random id of a cluster, made by an explicit `init`; travels in every handshake.
    ClusterId, 16, "a cluster id: 32 hexadecimal digits"
);
hex_bytes!(
    /// A BLAKE3 digest.
    Digest, 32, "a digest: 64 hexadecimal digits"
);
hex_bytes!(
    /// The kernel's id of one boot of one machine.
    BootId, 16, "a boot id: 32 hexadecimal digits"
);
hex_id!(
    /// A node: the first 8 bytes of the BLAKE3 digest of its public key. A wiped disk is a new node.
    NodeId, "n-", "a node id such as n-4e230f7e407fb971"
);
hex_id!(
    /// An access or join token; its secret is not part of it.
    TokenId, "tok-", "a token id such as tok-f8691d9f05937297"
);
hex_id!(
    /// One start of a daemon; random, so it has no order.
    Incarnation, "i-", "an incarnation"
);
hex_id!(
    /// A number used once, to tie an answer to its question.
    Nonce, "x-", "a nonce"
);
counter!(
    /// Generation of a lease's placement; rises by one at each move.
    Epoch, u32
);
counter!(
    /// One start within an epoch, counted from 1.
    Attempt, u32
);
counter!(
    /// Generation of a node lease; rises at each `NodeReturned`.
    Generation, u64
);
counter!(
    /// Rises at every restore from a backup; part of every token.
    Era, u32
);

/// A lease: the cell it was requested in and the log index of the request.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize,
)]
pub struct LeaseId {
    /// The cell, which is one log; 0 in a cluster of one cell.
    pub cell: u32,
    /// Log index of the `CreateLease` that made it.
    pub index: u64,
}

impl LeaseId {
    /// Names the lease that the entry at `index` of cell 0 requests.
    #[must_use]
    pub fn from_index(index: u64) -> Self {
        Self { cell: 0, index }
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cell {
            0 => write!(out, "lease-{}", self.index),
            cell => write!(out, "lease-{cell}.{}", self.index),
        }
    }
}

impl FromStr for LeaseId {
    type Err = ParseIdError;

    /// Reads `lease-12`, `lease-3.12`, or the bare number.
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let wrong = || ParseIdError {
            what: "a lease id such as lease-12",
            text: text.chars().take(64).collect(),
        };
        let number = |digits: &str| match digits.bytes().all(|byte| byte.is_ascii_digit()) {
            true => digits.parse::<u64>().map_err(|_| wrong()),
            false => Err(wrong()),
        };
        let rest = text.strip_prefix("lease-").unwrap_or(text);
        match rest.split_once('.') {
            Some((cell, index)) => Ok(Self {
                cell: u32::try_from(number(cell)?).map_err(|_| wrong())?,
                index: number(index)?,
            }),
            None => Ok(Self {
                cell: 0,
                index: number(rest)?,
            }),
        }
    }
}
text_serde!(LeaseId);

/// Fences one start of one placement: strictly increasing over the life of a cluster and its restores.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize,
)]
pub struct FencingToken {
    /// The era of the grant.
    pub era: Era,
    /// Log index of the grant.
    pub index: u64,
}

impl fmt::Display for FencingToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.era, self.index)
    }
}

impl FromStr for FencingToken {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let wrong = || ParseIdError {
            what: "a fencing token such as 0.42",
            text: text.chars().take(64).collect(),
        };
        let (era, index) = text.split_once('.').ok_or_else(wrong)?;
        Ok(Self {
            era: Era(era.parse().map_err(|_| wrong())?),
            index: index.parse().map_err(|_| wrong())?,
        })
    }
}
text_serde!(FencingToken);

/// What a gate compares: a placement's token and the attempt within it. Greater wins.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Fence {
    /// Token of the placement; ordered by era, then by log index, and so by epoch.
    pub token: FencingToken,
    /// Generation of the placement that the token was granted to.
    pub epoch: Epoch,
    /// Start within the epoch.
    pub attempt: Attempt,
}

/// Position of an event: the log index and the place among the events of that entry. Opaque and ordered to clients.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize,
)]
pub struct Cursor {
    /// Log index of the entry that the event was decided from.
    pub index: u64,
    /// Place among that entry's events, from 0.
    pub sub: u32,
}

impl fmt::Display for Cursor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.index, self.sub)
    }
}

impl FromStr for Cursor {
    type Err = ParseIdError;

    /// Reads `12.0`; a bare `12` is the last position of entry 12, so that reading after it starts at entry 13.
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let wrong = || ParseIdError {
            what: "an event position such as 12.0",
            text: text.chars().take(64).collect(),
        };
        match text.split_once('.') {
            Some((index, sub)) => Ok(Self {
                index: index.parse().map_err(|_| wrong())?,
                sub: sub.parse().map_err(|_| wrong())?,
            }),
            None => Ok(Self {
                index: text.parse().map_err(|_| wrong())?,
                sub: u32::MAX,
            }),
        }
    }
}
text_serde!(Cursor);

/// A device by its UUID, the same in NVML, in the log and in `CUDA_VISIBLE_DEVICES`; never an index.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize,
)]
pub struct DeviceId(pub [u8; 16]);

impl fmt::Display for DeviceId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = hex::encode(self.0);
        write!(
            out,
            "GPU-{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    }
}

impl FromStr for DeviceId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let wrong = || ParseIdError {
            what: "a device UUID such as GPU-2f1c…",
            text: text.chars().take(64).collect(),
        };
        let digits: String = text.strip_prefix("GPU-").unwrap_or(text).split('-').collect();
        let mut bytes = [0; 16];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| wrong())?;
        Ok(Self(bytes))
    }
}
text_serde!(DeviceId);

/// Names one request of one principal, so that a retry is answered and not executed again. Remembered 24 hours.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize,
)]
pub struct RequestId {
    /// The client's wall clock when it made the request, in milliseconds since 1970.
    pub client_ms: u64,
    /// 64 random bits.
    pub random: u64,
}

impl fmt::Display for RequestId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{:016x}", self.client_ms, self.random)
    }
}

impl FromStr for RequestId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let wrong = || ParseIdError {
            what: "a request id",
            text: text.chars().take(64).collect(),
        };
        let (ms, random) = text.split_once('-').ok_or_else(wrong)?;
        let random = u64::from_str_radix(random, 16).map_err(|_| wrong())?;
        Ok(Self {
            client_ms: ms.parse().map_err(|_| wrong())?,
            random,
        })
    }
}
text_serde!(RequestId);

/// A label that people choose: lower-case letters, digits and inner hyphens, 1 to 63 of them.
///
/// The alphabet keeps control bytes, path separators and look-alike characters out of screens, paths and metrics.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[rkyv(derive(Debug, PartialEq, Eq, PartialOrd, Ord))]
pub struct Name(String);

impl Name {
    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reports whether the name keeps the alphabet and the length; false only for forged bytes.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        Self::allows(&self.0)
    }

    fn allows(text: &str) -> bool {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !text.is_empty()
            && text.len() <= limits::NAME_BYTES_MAX
            && text.bytes().all(inner)
            && !text.starts_with('-')
            && !text.ends_with('-')
    }
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        match Self::allows(text) {
            true => Ok(Self(text.to_owned())),
            false => Err(ParseIdError {
                what: "a name: 1 to 63 of a-z, 0-9 and inner hyphens",
                text: text
                    .chars()
                    .take(64)
                    .map(|c| if c.is_control() { '\u{fffd}' } else { c })
                    .collect(),
            }),
        }
    }
}
text_serde!(Name);

/// Who pays and owns quota.
pub type TenantId = Name;
/// Part of a tenant, with a quota and a cap of its own.
pub type ProjectId = Name;
/// Failure domain.
pub type ZoneId = Name;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_read_back_as_the_same_id() {
        let lease = LeaseId { cell: 3, index: 12 };
        assert_eq!(lease.to_string().parse(), Ok(lease));
        assert_eq!("12".parse(), Ok(LeaseId::from_index(12)));
        let device = DeviceId([7; 16]);
        assert_eq!(device.to_string(), "GPU-07070707-0707-0707-0707-070707070707");
        assert_eq!(device.to_string().parse(), Ok(device));
        let node = NodeId(u64::MAX);
        assert_eq!(node.to_string().parse(), Ok(node));
        let cursor = Cursor { index: 9, sub: 2 };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        let request = RequestId {
            client_ms: 5,
            random: 6,
        };
        assert_eq!(request.to_string().parse(), Ok(request));
    }

    #[test]
    fn names_that_could_hurt_a_screen_or_a_path_are_refused() {
        for bad in [
            "",
            "-a",
            "a-",
            "A",
            "a/b",
            "a\nb",
            "a\0b",
            "\u{1b}[2J",
            "ä",
            "a b",
            &"x".repeat(64),
        ] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
        for good in ["a", "0", "team-blue", &"x".repeat(63)] {
            assert!(good.parse::<Name>().is_ok(), "{good:?}");
        }
    }

    #[test]
    fn numbers_that_wrap_are_not_lease_ids() {
        for bad in [
            "lease-18446744073709551616",
            "lease--1",
            "lease-+1",
            "lease-",
            "9999999999.1",
            "1e3",
        ] {
            assert!(bad.parse::<LeaseId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn json_carries_ids_as_text() {
        let json = serde_json::to_string(&NodeId(1 << 60)).unwrap();
        assert_eq!(json, "\"n-1000000000000000\"");
        assert_eq!(serde_json::from_str::<NodeId>(&json).unwrap(), NodeId(1 << 60));
    }
}
