//! `/v1/tokens`: makes, lists and revokes tokens.
//!
//! The one rule: a secret exists in the answer that makes its token and nowhere else; the log holds its digest.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use holdfast_proto::command::Command;
use holdfast_proto::event::Event;
use holdfast_proto::id::TokenId;
use holdfast_proto::limits::JOIN_TOKEN_MS_DEFAULT;
use holdfast_proto::node::NodeRole;
use holdfast_proto::tenant::{AccessToken, Role};
use holdfast_proto::time::{Span, Timestamp};
use holdfast_storage::machine::state::{Access, Join, State as Machine};

use super::Api;
use super::auth::Caller;
use super::body::{Named, Posted};
use super::command::{Done, issue};
use super::problem::Failure;
use super::read::Reading;
use crate::bearer::Bearer;
use crate::join::{JoinToken, role_word};
use crate::wire::cluster::Applied;
use crate::wire::problem::code;
use crate::wire::token::{TokenList, TokenMade, TokenOrder, TokenView};

/// Makes a token. Its text is in this answer only.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", request_body = TokenOrder,
    responses((status = 201, description = "The token, with its secret", body = TokenMade)))]
pub async fn create(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Posted(order): Posted<TokenOrder>,
) -> Result<Response, Failure> {
    let parts = api.parts();
    match order {
        TokenOrder::Join { role, life_ms } => {
            let token = JoinToken::draw(role, parts.authority, parts.entropy.as_ref());
            let life = Span(life_ms.unwrap_or(JOIN_TOKEN_MS_DEFAULT));
            let command = Command::CreateJoinToken {
                token: token.id,
                secret: token.digest(),
                role,
                life,
            };
            let done = issue(&api, &caller, request, command).await?;
            let expires_ms = made(&done, token.id)?;
            let join_line = Some(join_line(&parts.committed.state(), parts.node, &token));
            let answer = TokenMade {
                id: token.id,
                token: token.reveal(),
                expires_ms,
                join_line,
            };
            Ok(done.answer(StatusCode::CREATED, &answer))
        }
        TokenOrder::Access {
            role,
            tenant,
            project,
            note,
            life_ms,
        } => {
            let token = Bearer::draw(parts.entropy.as_ref());
            let expires = life_ms.map(|life| Timestamp(parts.clock.wall_ms()).plus(Span(life)));
            let access = AccessToken {
                token: token.id,
                secret: token.digest(),
                role,
                tenant,
                project,
                note,
                expires,
            };
            let done = issue(&api, &caller, request, Command::CreateAccessToken(access)).await?;
            let expires_ms = made(&done, token.id)?;
            let answer = TokenMade {
                id: token.id,
                token: token.reveal().expose().clone(),
                expires_ms,
                join_line: None,
            };
            Ok(done.answer(StatusCode::CREATED, &answer))
        }
    }
}

/// When the token that was drawn here expires; fails when an earlier copy of the request made another one, whose secret is lost.
fn made(done: &Done, token: TokenId) -> Result<Option<u64>, Failure> {
    let expires = done.events.iter().find_map(|event| match event {
        Event::JoinTokenCreated(join) if join.token == token => Some(Some(join.expires.0)),
        Event::AccessTokenCreated(access) if access.token == token => Some(access.expires.map(|at| at.0)),
        _ => None,
    });
    expires.ok_or_else(|| {
        let detail = format!(
            "an earlier copy of this request made its token at log index {}, and its secret was lost with that answer; revoke it and make a new one",
            done.index
        );
        Failure::new(StatusCode::CONFLICT, code::SECRET_LOST, detail)
    })
}

/// What to type on the machine that joins.
pub fn join_line(state: &Machine, node: holdfast_proto::id::NodeId, token: &JoinToken) -> String {
    let address = state
        .nodes
        .get(&node)
        .map(|node| node.spec.address.to_string())
        .unwrap_or_else(|| "HOST:PORT".to_owned());
    format!("holdfast join {address} --token {}", token.reveal())
}

/// Lists tokens, without their secrets.
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens",
    params(("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "Tokens", body = TokenList)))]
pub async fn list(State(api): State<Api>, reading: Reading) -> Result<Response, Failure> {
    let now = api.parts().clock.wall_ms();
    let state = &reading.state;
    let mut tokens: Vec<TokenView> = state.access_tokens.values().map(|token| access(token, now)).collect();
    tokens.extend(state.join_tokens.values().map(|token| join(token, now)));
    tokens.sort_by_key(|token| (std::cmp::Reverse(token.created_ms), token.id));
    Ok(reading.answer(&TokenList { tokens }))
}

/// Revokes a token.
#[utoipa::path(delete, path = "/v1/tokens/{token}", tag = "tokens",
    params(("token" = String, Path, description = "Its public part")),
    responses((status = 200, description = "It works no more", body = Applied)))]
pub async fn revoke(
    State(api): State<Api>,
    caller: Caller,
    Named(request): Named,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    let command = Command::RevokeToken { token: id.parse()? };
    Ok(issue(&api, &caller, request, command).await?.applied())
}

/// The public word of a role.
pub fn access_role_word(role: Role) -> &'static str {
    match role {
        Role::Operator => "operator",
        Role::Tenant => "tenant",
        Role::Subscriber => "subscriber",
        Role::ReadOnly => "read-only",
    }
}

fn access(access: &Access, now: u64) -> TokenView {
    let token = &access.token;
    TokenView {
        id: token.token,
        kind: "access".to_owned(),
        role: access_role_word(token.role).to_owned(),
        tenant: token.tenant.clone(),
        project: token.project.clone(),
        note: token.note.clone(),
        created_ms: access.created.0,
        expires_ms: token.expires.map(|at| at.0),
        state: standing(access.revoked, false, token.expires.map(|at| at.0), now),
        used_by: None,
    }
}

fn join(join: &Join, now: u64) -> TokenView {
    let role: NodeRole = join.token.role;
    TokenView {
        id: join.token.token,
        kind: "join".to_owned(),
        role: role_word(role).to_owned(),
        tenant: None,
        project: None,
        note: String::new(),
        created_ms: join.created.0,
        expires_ms: Some(join.token.expires.0),
        state: standing(join.revoked, join.used_by.is_some(), Some(join.token.expires.0), now),
        used_by: join.used_by,
    }
}

fn standing(revoked: bool, used: bool, expires_ms: Option<u64>, now: u64) -> String {
    let word = match (revoked, used, expires_ms.is_some_and(|at| at <= now)) {
        (true, _, _) => "revoked",
        (_, true, _) => "used",
        (_, _, true) => "expired",
        _ => "valid",
    };
    word.to_owned()
}
