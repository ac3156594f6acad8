//! Folds what happens to the cluster as a whole: identity, voters, tokens, tenants, prices, levels.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_proto::condition::LEVEL;
use holdfast_proto::event::{Event, EventRecord};
use holdfast_proto::id::TokenId;
use holdfast_proto::limits::JOIN_TOKEN_MS_MAX;
use holdfast_proto::tariff::Tariff;
use holdfast_proto::tenant::JoinToken;
use holdfast_proto::time::{Span, Timestamp};

use super::super::state::{Access, Join, Lease, State, StateHash, Tenant};

pub(super) fn fold(state: &mut State, record: &EventRecord) {
    match &record.event {
        Event::ClusterInitialized { cluster, era } => {
            state.cluster.id = Some(*cluster);
            state.cluster.era = *era;
            // A cluster that begins anew keeps the rules that its state was made under.
            state.cluster.level = state.cluster.level.max(1);
        }
        Event::VotersChanged { voters } => state.cluster.voters.clone_from(voters),
        Event::JoinTokenCreated(token) => join_token(state, token, record.at),
        Event::AccessTokenCreated(token) => {
            let access = Access {
                token: token.clone(),
                created: record.at,
                revoked: false,
            };
            state.access_tokens.insert(token.token, Arc::new(access));
        }
        Event::TokenRevoked { token } => revoke(state, *token),
        Event::TenantSet { tenant, quota } => match state.tenants.get_mut(tenant) {
            Some(known) => known.quota = *quota,
            None => {
                let tenant_state = Tenant { quota: *quota, held: 0 };
                state.tenants.insert(tenant.clone(), tenant_state);
            }
        },
        Event::LimitsSet { tenant, limits } => {
            if limits.is_empty() {
                state.limits.remove(tenant);
            } else if state.tenants.contains_key(tenant) {
                state.limits.insert(tenant.clone(), Arc::new(limits.clone()));
            }
        }
        Event::TariffSet(tariff) => tariff_set(state, tariff),
        Event::StateHashRecorded { at, hash } => {
            state.cluster.hashed = Some(StateHash { at: *at, hash: *hash });
        }
        Event::MachineLevelRaised { level } => level_raised(state, *level, record.at),
        Event::TimeSet { time } => state.cluster.time_floor = *time,
        _ => {}
    }
}

/// Puts rules in force. Those of [`LEVEL`] count what tenants have, from what they have at that time on.
fn level_raised(state: &mut State, level: u32, at: Timestamp) {
    let counts = state.cluster.level < LEVEL && level >= LEVEL;
    state.cluster.level = level;
    if !counts {
        return;
    }
    let had = |lease: &Arc<Lease>| Some((lease.requested.tenant.clone(), lease.placement.as_ref()?.devices()));
    let have: Vec<_> = state.live_leases().filter_map(had).collect();
    for (tenant, devices) in have {
        super::lease::have(state, &tenant, 0, devices, at);
    }
}

fn join_token(state: &mut State, token: &JoinToken, at: Timestamp) {
    // Tokens that expired long ago would pile up; their text is then "there is no token", which is true enough.
    let keep = Span(JOIN_TOKEN_MS_MAX);
    let old = |join: &Join| join.token.expires.plus(keep) < at;
    let gone: Vec<TokenId> = state
        .join_tokens
        .values()
        .filter(|join| old(join))
        .map(|join| join.token.token)
        .collect();
    for token in gone {
        state.join_tokens.remove(&token);
    }
    let join = Join {
        token: token.clone(),
        created: at,
        used_by: None,
        revoked: false,
    };
    state.join_tokens.insert(token.token, Arc::new(join));
}

fn revoke(state: &mut State, token: TokenId) {
    if let Some(access) = state.access_tokens.get_mut(&token) {
        Arc::make_mut(access).revoked = true;
    }
    if let Some(join) = state.join_tokens.get_mut(&token) {
        Arc::make_mut(join).revoked = true;
    }
}

/// Takes new prices, and forgets those that no lease was requested under.
fn tariff_set(state: &mut State, tariff: &Tariff) {
    state.cluster.tariff = tariff.version;
    state.tariffs.insert(tariff.version, Arc::new(tariff.clone()));
    let mut used: BTreeSet<u32> = state.leases.values().map(|lease| lease.requested.tariff).collect();
    used.insert(tariff.version);
    let unused: Vec<u32> = state
        .tariffs
        .keys()
        .copied()
        .filter(|version| !used.contains(version))
        .collect();
    for version in unused {
        state.tariffs.remove(&version);
    }
}
