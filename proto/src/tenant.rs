//! Tenants, and who may speak for them.

// rkyv's derive gives the fields of archived struct variants no documentation of their own.
#![allow(missing_docs)]

use crate::device::ModelName;
use crate::id::{Digest, NodeId, ProjectId, TenantId, TokenId};
use crate::node::NodeRole;
use crate::time::Timestamp;

/// What a tenant may hold at once.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug,
    Clone,
    Copy,
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
pub struct Quota {
    /// Most devices in all live leases together; the greatest number stands for any number, and is `null` in JSON.
    #[serde(with = "unbounded")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<u32>))]
    pub devices_max: u32,
}

/// The JSON form of a bound that may be absent: nobody should have to know the greatest number of 32 bits.
mod unbounded {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for this form")]
    pub(super) fn serialize<S: Serializer>(bound: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        Some(*bound).filter(|bound| *bound != u32::MAX).serialize(serializer)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<u32, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or(u32::MAX))
    }
}

/// A bound on what a tenant's live leases may have together, beyond the number of devices. Append only: a bound is one
/// box, so that a new one changes the bytes of no other.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
#[serde(tag = "limit", rename_all = "kebab-case")]
pub enum Limit {
    /// On devices of one model.
    Model(Box<ModelLimit>),
    /// On what they cost.
    Spend(Box<SpendLimit>),
}

/// Most devices of one model.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct ModelLimit {
    /// The model.
    pub model: ModelName,
    /// Most devices; the greatest number stands for any number, and is `null` in JSON.
    #[serde(with = "unbounded")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<u32>))]
    pub devices_max: u32,
}

/// Most that leases may cost while all of them run.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct SpendLimit {
    /// Micro-units for one hour; `None` for any amount.
    pub micros_per_hour_max: Option<u64>,
}

impl Limit {
    /// Reports whether it bounds the same as `other`: the one that is set later holds.
    #[must_use]
    pub fn is_about_the_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Model(one), Self::Model(other)) => one.model == other.model,
            (Self::Spend(_), Self::Spend(_)) => true,
            (Self::Model(_), Self::Spend(_)) | (Self::Spend(_), Self::Model(_)) => false,
        }
    }

    /// Reports whether it bounds anything.
    #[must_use]
    pub fn binds(&self) -> bool {
        match self {
            Self::Model(limit) => limit.devices_max != u32::MAX,
            Self::Spend(limit) => limit.micros_per_hour_max.is_some(),
        }
    }
}

/// What the bearer of a token may do.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug,
    Clone,
    Copy,
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
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Everything.
    Operator,
    /// Leases and reads of one tenant.
    Tenant,
    /// The event stream, of one tenant or of all.
    Subscriber,
    /// Reads, of one tenant or of all.
    ReadOnly,
}

/// Who issued a command, as authenticated at the edge.
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Principal {
    /// A person or program with a bearer token.
    Bearer {
        /// The token.
        token: TokenId,
        /// Its role.
        role: Role,
        /// The tenant it is bound to, if any.
        tenant: Option<TenantId>,
    },
    /// A node, by its certificate.
    Node(NodeId),
}

/// An access token as the log knows it: never its secret.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct AccessToken {
    /// Public part.
    pub token: TokenId,
    /// BLAKE3 digest of the secret, 256 random bits.
    pub secret: Digest,
    /// What its bearer may do.
    pub role: Role,
    /// The tenant it is bound to, if any.
    pub tenant: Option<TenantId>,
    /// The project its leases belong to, if any.
    pub project: Option<ProjectId>,
    /// What it is for, for people.
    pub note: String,
    /// When it stops working.
    pub expires: Option<Timestamp>,
}

/// A join token as the log knows it: admits one node, once.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct JoinToken {
    /// Public part.
    pub token: TokenId,
    /// BLAKE3 digest of the secret.
    pub secret: Digest,
    /// The role that it admits.
    pub role: NodeRole,
    /// When it stops working.
    pub expires: Timestamp,
}
