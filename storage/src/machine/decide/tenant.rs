//! Decides tokens, tenants, what they may have, and prices.

use holdfast_proto::command::Command;
use holdfast_proto::condition::LEVEL;
use holdfast_proto::event::Event;
use holdfast_proto::id::{Digest, Name, TenantId, TokenId};
use holdfast_proto::limits::{CAP_MICROS_MAX, JOIN_TOKEN_MS_MAX, TENANT_LIMITS_MAX};
use holdfast_proto::node::NodeRole;
use holdfast_proto::rejection::Rejection;
use holdfast_proto::tariff::Tariff;
use holdfast_proto::tenant::{AccessToken, JoinToken, Limit, Role};
use holdfast_proto::time::Span;

use super::super::draft::Draft;
use super::shape;

/// Most prices of one tariff.
const PRICES_MAX: usize = 1024;

/// Highest price of one device and one hour: a million units. With the limits on devices and durations it keeps every
/// amount below 2^64.
const PRICE_MICROS_MAX: u64 = 1_000_000 * 1_000_000;

pub(super) fn decide(draft: &mut Draft, command: &Command) -> Result<(), Rejection> {
    match command {
        Command::CreateJoinToken {
            token,
            secret,
            role,
            life,
        } => create_join_token(draft, *token, *secret, *role, *life),
        Command::CreateAccessToken(token) => create_access_token(draft, token),
        Command::RevokeToken { token } => revoke(draft, *token),
        Command::SetTenant { tenant, quota } => {
            shape::name("tenant", tenant)?;
            draft.emit(Event::TenantSet {
                tenant: tenant.clone(),
                quota: *quota,
            });
            Ok(())
        }
        Command::SetLimits { tenant, limits } => set_limits(draft, tenant, limits),
        Command::SetTariff(tariff) => {
            check_tariff(tariff)?;
            let next = draft.state().cluster.tariff.saturating_add(1);
            shape::within("version", tariff.version, next..=next)?;
            draft.emit(Event::TariffSet(tariff.clone()));
            Ok(())
        }
        _ => unreachable!("decide.rs routes tenant commands only"),
    }
}

/// Sets bounds; those that are not named stay, so that two operators who set different ones do not undo each other.
fn set_limits(draft: &mut Draft, tenant: &TenantId, limits: &[Limit]) -> Result<(), Rejection> {
    draft.tenant(tenant)?;
    shape::level(draft.state().cluster.level, LEVEL, "limits")?;
    shape::within("number of limits", limits.len(), 1..=TENANT_LIMITS_MAX)?;
    for (place, limit) in limits.iter().enumerate() {
        if limits[..place].iter().any(|other| other.is_about_the_same(limit)) {
            return Err(shape::out_of_range("limits", "the same one twice", "each named once"));
        }
        match limit {
            Limit::Model(limit) => shape::name("model", &limit.model)?,
            Limit::Spend(limit) => {
                let most = limit.micros_per_hour_max.unwrap_or(0);
                shape::within("micro-units for one hour", most, 0..=CAP_MICROS_MAX)?;
            }
        }
    }
    let mut all = draft.state().limits_of(tenant).to_vec();
    all.retain(|old| !limits.iter().any(|new| new.is_about_the_same(old)));
    all.extend(limits.iter().filter(|limit| limit.binds()).cloned());
    all.sort_by(|one, other| place_of(one).cmp(&place_of(other)));
    shape::within("number of limits in all", all.len(), 0..=TENANT_LIMITS_MAX)?;
    draft.emit(Event::LimitsSet {
        tenant: tenant.clone(),
        limits: all,
    });
    Ok(())
}

/// Where a limit stands among a tenant's: models by name, then money.
fn place_of(limit: &Limit) -> (u8, Option<&Name>) {
    match limit {
        Limit::Model(limit) => (0, Some(&limit.model)),
        Limit::Spend(_) => (1, None),
    }
}

fn is_new(draft: &Draft, token: TokenId) -> Result<(), Rejection> {
    let state = draft.state();
    match state.access_tokens.contains_key(&token) || state.join_tokens.contains_key(&token) {
        true => Err(Rejection::TokenExists { token }),
        false => Ok(()),
    }
}

fn create_join_token(
    draft: &mut Draft,
    token: TokenId,
    secret: Digest,
    role: NodeRole,
    life: Span,
) -> Result<(), Rejection> {
    is_new(draft, token)?;
    if life == Span(0) || life > Span(JOIN_TOKEN_MS_MAX) {
        return Err(shape::out_of_range("life", life, "more than 0s and at most 24h"));
    }
    draft.emit(Event::JoinTokenCreated(JoinToken {
        token,
        secret,
        role,
        expires: draft.at().plus(life),
    }));
    Ok(())
}

fn create_access_token(draft: &mut Draft, token: &AccessToken) -> Result<(), Rejection> {
    is_new(draft, token.token)?;
    shape::text("note", &token.note)?;
    if let Some(project) = &token.project {
        shape::name("project", project)?;
    }
    match &token.tenant {
        Some(tenant) => draft.tenant(tenant)?,
        None if token.role == Role::Tenant => {
            return Err(shape::out_of_range("tenant", "absent", "named for a tenant's token"));
        }
        None => {}
    }
    if let Some(expires) = token.expires.filter(|expires| *expires <= draft.at()) {
        let allowed = format!("after {}", draft.at());
        return Err(shape::out_of_range("expires", expires, &allowed));
    }
    draft.emit(Event::AccessTokenCreated(token.clone()));
    Ok(())
}

fn revoke(draft: &mut Draft, token: TokenId) -> Result<(), Rejection> {
    let state = draft.state();
    let access = state.access_tokens.get(&token).map(|access| access.revoked);
    let join = state.join_tokens.get(&token).map(|join| join.revoked);
    match access.or(join) {
        None => Err(Rejection::TokenUnknown { token }),
        Some(true) => Err(Rejection::TokenRevoked { token }),
        Some(false) => {
            draft.emit(Event::TokenRevoked { token });
            Ok(())
        }
    }
}

/// Checks prices on their own: each bounded, each model and plan once.
pub(super) fn check_tariff(tariff: &Tariff) -> Result<(), Rejection> {
    let currency = tariff.currency.as_bytes();
    if currency.len() != 3 || !currency.iter().all(u8::is_ascii_uppercase) {
        return Err(shape::out_of_range(
            "currency",
            &tariff.currency,
            "a code of three capitals such as USD",
        ));
    }
    shape::within("version", tariff.version, 1..=u32::MAX)?;
    shape::within("number of prices", tariff.prices.len(), 0..=PRICES_MAX)?;
    for price in &tariff.prices {
        shape::name("model", &price.model)?;
        shape::within(
            "price in micro-units",
            price.micros_per_device_hour,
            0..=PRICE_MICROS_MAX,
        )?;
    }
    let in_order =
        |pair: &[holdfast_proto::tariff::Price]| (&pair[0].model, pair[0].plan) < (&pair[1].model, pair[1].plan);
    match tariff.prices.windows(2).find(|pair| !in_order(pair)) {
        Some(pair) => Err(shape::out_of_range(
            "prices",
            &pair[1].model,
            "in order of model and plan, each once",
        )),
        None => Ok(()),
    }
}
