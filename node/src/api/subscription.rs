//! `/v1/subscriptions`: names in the log for readers of the event stream, and how far each has come.
//!
//! A bearer that sees all tenants makes subscriptions of the cluster, others those of their tenant; an operator may name
//! an owner. The one rule: an acknowledgement says only what its reader said, and may be sent any number of times.

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use holdfast_proto::command::Command;
use holdfast_proto::rejection::Rejection;
use holdfast_proto::subscription::{Subscription, SubscriptionKey};
use holdfast_proto::tenant::Role;
use holdfast_storage::machine::state::{State as Machine, Subscribed};
use serde::Deserialize;

use super::Api;
use super::auth::Caller;
use super::body::{Named, Posted};
use super::command::{issue, issue_again};
use super::event::Beginning;
use super::event::filter::{Wishes, filter};
use super::problem::Failure;
use super::read::{Reading, fresh, stale};
use crate::wire::cluster::Applied;
use crate::wire::subscription::{Acknowledgement, SubscriptionList, SubscriptionOrder, SubscriptionView};

/// Whose subscription is meant.
#[derive(Debug, Default, Deserialize)]
pub struct Owner {
    /// The tenant; that of the caller when absent.
    pub owner: Option<String>,
}

impl Owner {
    /// The full name of a subscription of this owner, as `caller` may say it.
    pub fn key(&self, caller: &Caller, name: &str) -> Result<SubscriptionKey, Failure> {
        let own = caller.tenant.clone().filter(|_| !caller.sees_all());
        let tenant = match &self.owner {
            None => own,
            Some(named) => Some(named.parse()?),
        };
        if caller.role != Role::Operator && tenant != caller.tenant {
            return Err(Failure::not_allowed("this token sees no subscriptions of that owner"));
        }
        Ok(SubscriptionKey {
            tenant,
            subscription: name.parse()?,
        })
    }
}

/// Makes a subscription. Its reader opens `/v1/events?subscription=NAME` and acknowledges what it is done with.
#[utoipa::path(post, path = "/v1/subscriptions", tag = "events", request_body = SubscriptionOrder,
    params(("owner" = Option<String>, Query, description = "The tenant that it belongs to; for operators")),
    responses((status = 201, description = "It is kept from now on", body = Applied)))]
pub async fn create(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Query(owner): Query<Owner>,
    Posted(order): Posted<SubscriptionOrder>,
) -> Result<Response, Failure> {
    let key = owner.key(&caller, order.name.as_str())?;
    let wishes = Wishes {
        topic: order.topic,
        kind: order.kind,
        lease: order.lease,
        tenant: order.tenant,
        node: order.node,
    };
    let filter = filter(&caller, &wishes)?;
    // Where nobody says how far the log is, what is known here is an earlier place: more is told, and nothing missed.
    let beginning = Beginning::from_word(order.from.as_deref().unwrap_or("now"))?;
    let after = beginning.resolve(&api, false);
    let made = Subscription { key, filter, after };
    let done = issue(&api, &caller, request, Command::CreateSubscription(Box::new(made))).await?;
    Ok(done.answer(StatusCode::CREATED, &Applied { index: done.index }))
}

/// Lists subscriptions: a tenant's its own, to whoever sees all tenants all.
#[utoipa::path(get, path = "/v1/subscriptions", tag = "events",
    params(("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "Subscriptions", body = SubscriptionList)))]
pub async fn list(caller: Caller, reading: Reading) -> Result<Response, Failure> {
    let state = &reading.state;
    let seen = state.subscriptions.iter().filter(|(key, _)| match &key.tenant {
        Some(tenant) => caller.sees(tenant),
        None => caller.sees_all(),
    });
    let subscriptions = seen.map(|(key, one)| view(state, key, one)).collect();
    Ok(reading.answer(&SubscriptionList { subscriptions }))
}

/// Shows a subscription.
#[utoipa::path(get, path = "/v1/subscriptions/{name}", tag = "events",
    params(("name" = String, Path, description = "Its name"),
        ("owner" = Option<String>, Query, description = "The tenant that it belongs to; for operators"),
        ("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "The subscription", body = SubscriptionView)))]
pub async fn show(
    caller: Caller,
    reading: Reading,
    Path(name): Path<String>,
    Query(owner): Query<Owner>,
) -> Result<Response, Failure> {
    let key = owner.key(&caller, &name)?;
    let one = found(&reading.state, &key)?;
    Ok(reading.answer(&view(&reading.state, &key, one)))
}

/// Acknowledges all events up to a position. A position that was acknowledged before is taken again; an earlier one is refused.
#[utoipa::path(put, path = "/v1/subscriptions/{name}/cursor", tag = "events", request_body = Acknowledgement,
    params(("name" = String, Path, description = "Its name"),
        ("owner" = Option<String>, Query, description = "The tenant that it belongs to; for operators")),
    responses((status = 200, description = "They are not told again", body = Applied)))]
pub async fn acknowledge(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Path(name): Path<String>,
    Query(owner): Query<Owner>,
    Posted(Acknowledgement { through }): Posted<Acknowledgement>,
) -> Result<Response, Failure> {
    let key = owner.key(&caller, &name)?;
    let command = Command::AcknowledgeEvents { key, through };
    Ok(issue_again(&api, &caller, request, command).await?.applied())
}

/// Forgets a subscription.
#[utoipa::path(delete, path = "/v1/subscriptions/{name}", tag = "events",
    params(("name" = String, Path, description = "Its name"),
        ("owner" = Option<String>, Query, description = "The tenant that it belongs to; for operators")),
    responses((status = 200, description = "It is forgotten", body = Applied)))]
pub async fn remove(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Path(name): Path<String>,
    Query(owner): Query<Owner>,
) -> Result<Response, Failure> {
    let key = owner.key(&caller, &name)?;
    let command = Command::RemoveSubscription { key };
    Ok(issue(&api, &caller, request, command).await?.applied())
}

/// The subscription that a reader opens: as fresh as can be had, or else as it is known here. An older position is told more than it
/// needs, which its reader has to bear anyway.
pub async fn opened(api: &Api, key: &SubscriptionKey) -> Result<Subscribed, Failure> {
    match fresh(api).await {
        Ok(reading) => found(&reading.state, key).cloned(),
        Err(failure) => found(&stale(api).state, key).cloned().map_err(|_| failure),
    }
}

fn found<'a>(state: &'a Machine, key: &SubscriptionKey) -> Result<&'a Subscribed, Failure> {
    let unknown = || {
        let subscription = key.subscription.clone();
        Failure::refused(Rejection::SubscriptionUnknown { subscription }, None)
    };
    state.subscriptions.get(key).map(AsRef::as_ref).ok_or_else(unknown)
}

fn view(state: &Machine, key: &SubscriptionKey, one: &Subscribed) -> SubscriptionView {
    SubscriptionView {
        name: key.subscription.clone(),
        owner: key.tenant.clone(),
        filter: one.filter.clone(),
        acknowledged: one.acknowledged,
        behind: behind(state, one),
        created_ms: one.created.0,
        acknowledged_ms: one.acknowledged_at.0,
    }
}

/// Entries of the log since a subscription's position.
pub fn behind(state: &Machine, one: &Subscribed) -> u64 {
    state.cluster.cursor.index.saturating_sub(one.acknowledged.index)
}
