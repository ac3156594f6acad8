//! Durable subscriptions: a name in the log for a reader of the event stream, and how far that reader has come.
//!
//! A subscription belongs to a tenant, or to the cluster when its maker sees all tenants. Its position is the last one
//! that its reader has acknowledged; everything after it is told again until it is acknowledged too. The rule: a
//! position never goes back, and a cluster takes subscriptions only at [`LEVEL`], when every replica knows them.

use crate::event::Topic;
use crate::id::{Cursor, LeaseId, Name, NodeId, TenantId};

/// Level of the machine's rules from which on there are subscriptions.
pub const LEVEL: u32 = 3;

/// Most subscriptions of one tenant, and of the cluster itself.
pub const SUBSCRIPTIONS_MAX: usize = 64;

/// Most types that one filter names.
pub const TYPES_MAX: usize = 64;

/// Which events a subscription is about; an empty list and an absent value ask for nothing, and all that is asked has to
/// be met.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug,
    Clone,
    Default,
    PartialEq,
    Eq,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct EventFilter {
    /// Only these topics, in order.
    pub topics: Vec<Topic>,
    /// Only these types, in order of their names.
    pub types: Vec<Name>,
    /// Only about this lease.
    pub lease: Option<LeaseId>,
    /// Only about this tenant.
    pub tenant: Option<TenantId>,
    /// Only about this node.
    pub node: Option<NodeId>,
}

/// Names a subscription for the whole cluster: a name is given once to each tenant.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug,
    Clone,
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
pub struct SubscriptionKey {
    /// The tenant that it belongs to; `None` when it is the cluster's.
    pub tenant: Option<TenantId>,
    /// Its name.
    pub subscription: Name,
}

/// A subscription as it is made.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, serde::Serialize, serde::Deserialize,
)]
pub struct Subscription {
    /// Which one.
    #[serde(flatten)]
    pub key: SubscriptionKey,
    /// What it is about.
    pub filter: EventFilter,
    /// Its first position: it is told what is strictly after this.
    pub after: Cursor,
}
