//! Tokens and tenants as operators order and see them.

use std::collections::BTreeMap;
use std::fmt;

use holdfast_proto::id::{Name, NodeId, TokenId};
use holdfast_proto::node::NodeRole;
use holdfast_proto::tenant::Role;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// An order for a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum TokenOrder {
    /// Admits one node, once.
    Join {
        /// `replica`, `worker` or `witness`.
        #[schema(value_type = String)]
        role: NodeRole,
        /// Life; 15 minutes when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        life_ms: Option<u64>,
    },
    /// Speaks for a person or a program.
    Access {
        /// `operator`, `tenant`, `subscriber` or `read-only`.
        #[schema(value_type = String)]
        role: Role,
        /// The tenant that it is bound to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        tenant: Option<Name>,
        /// The project that its leases belong to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        project: Option<Name>,
        /// What it is for, for people.
        #[serde(default)]
        note: String,
        /// Life; it works until it is revoked when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        life_ms: Option<u64>,
    },
}

/// A token that was made. Its text is shown this once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenMade {
    /// Public part.
    #[schema(value_type = String)]
    pub id: TokenId,
    /// The whole token, with its secret.
    pub token: String,
    /// When it stops working.
    pub expires_ms: Option<u64>,
    /// What to type on the machine that joins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_line: Option<String>,
}

impl fmt::Debug for TokenMade {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "TokenMade {{ id: {}, token: [secret] }}", self.id)
    }
}

/// A token without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// Public part.
    #[schema(value_type = String)]
    pub id: TokenId,
    /// `access` or `join`.
    pub kind: String,
    /// What it allows.
    pub role: String,
    /// The tenant that it is bound to.
    #[schema(value_type = Option<String>)]
    pub tenant: Option<Name>,
    /// The project that its leases belong to.
    #[schema(value_type = Option<String>)]
    pub project: Option<Name>,
    /// What it is for.
    pub note: String,
    /// When it was made.
    pub created_ms: u64,
    /// When it stops working.
    pub expires_ms: Option<u64>,
    /// `valid`, `expired`, `revoked` or `used`.
    pub state: String,
    /// The node that it admitted.
    #[schema(value_type = Option<String>)]
    pub used_by: Option<NodeId>,
}

/// A list of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// Tokens, newest first.
    pub tokens: Vec<TokenView>,
}

/// What a tenant may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantOrder {
    /// Most devices in all its live leases together; `null` for any number. When it is left out, what the tenant may hold
    /// stays as it is, and a new tenant may hold any number.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "said")]
    #[schema(value_type = Option<u32>)]
    pub devices_max: Option<Option<u32>>,
}

/// Tells a `null` from what was left out.
fn said<'a, T: Deserialize<'a>, D: Deserializer<'a>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Bounds of a tenant beyond its number of devices. What is not named stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsOrder {
    /// Most devices of each named model; `null` for any number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, Option<u32>>)]
    pub models: BTreeMap<Name, Option<u32>>,
    /// Most that its leases may cost together, micro-units for one hour; `null` for any amount.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "said")]
    #[schema(value_type = Option<u64>)]
    pub micros_per_hour_max: Option<Option<u64>>,
}

/// A bound on devices of one model, and how many the tenant has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelLimitView {
    /// The model.
    #[schema(value_type = String)]
    pub model: Name,
    /// Most devices of it.
    pub devices_max: u32,
    /// Devices of it in live leases, waiting ones too when they accept no other model.
    pub devices_held: u32,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantView {
    /// Its name.
    #[schema(value_type = String)]
    pub tenant: Name,
    /// Most devices in all its live leases together; `null` for any number.
    pub devices_max: Option<u32>,
    /// Devices of its live leases, waiting ones too.
    pub devices_held: u32,
    /// Bounds on single models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelLimitView>,
    /// Most that its leases may cost together, micro-units for one hour; absent for any amount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micros_per_hour_max: Option<u64>,
    /// What they come to: those that wait count with the least that they can cost.
    #[serde(default)]
    pub micros_per_hour: u64,
}

/// A list of tenants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantList {
    /// Tenants, ordered by name.
    pub tenants: Vec<TenantView>,
}
