//! Who asks, and what that lets them ask.
//!
//! Owns the layer in front of every endpoint that needs a token, and the scope that reads are cut down to. The one rule: a text is only
//! told more than "not valid" when the secret that it shows is right, and no text repeats any part of a secret.

use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use holdfast_proto::id::{ProjectId, TenantId, TokenId};
use holdfast_proto::rejection::Rejection;
use holdfast_proto::tenant::{Principal, Role};
use holdfast_proto::time::{Span, Timestamp};
use holdfast_storage::machine::state::{Access, Lease, State as Machine};

use super::Api;
use super::problem::Failure;
use crate::bearer::Bearer;
use crate::wire::problem::code;

/// Whose token an endpoint takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// No token: health, the document, and joining, which shows a token of its own.
    Nothing,
    /// Any valid token.
    AnyToken,
    /// A token that may read: all but a subscriber's.
    Reads,
    /// A tenant's or an operator's.
    Leases,
    /// All but a reader's: it may change what the cluster remembers of who reads its events.
    Subscribes,
    /// An operator's.
    Operator,
    /// One that sees all tenants: an operator's, or a reader's or subscriber's that is bound to none.
    Everything,
}

/// The bearer of a valid token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The token's public part.
    pub token: TokenId,
    /// What it allows.
    pub role: Role,
    /// The tenant that it is bound to.
    pub tenant: Option<TenantId>,
    /// The project that its leases belong to.
    pub project: Option<ProjectId>,
}

impl Caller {
    /// The bearer, as a command names it.
    pub fn principal(&self) -> Principal {
        Principal::Bearer {
            token: self.token,
            role: self.role,
            tenant: self.tenant.clone(),
        }
    }

    /// Whether the bearer sees every tenant.
    pub fn sees_all(&self) -> bool {
        self.role == Role::Operator || (self.tenant.is_none() && self.role != Role::Tenant)
    }

    /// Whether the bearer sees what belongs to `tenant`.
    pub fn sees(&self, tenant: &TenantId) -> bool {
        self.sees_all() || self.tenant.as_ref() == Some(tenant)
    }

    /// The lease, unless it is not there or not the bearer's to see; the two look the same.
    pub fn lease<'a>(&self, state: &'a Machine, text: &str) -> Result<&'a Lease, Failure> {
        let lease = text.parse()?;
        state
            .leases
            .get(&lease)
            .map(AsRef::as_ref)
            .filter(|found| self.sees(&found.requested.tenant))
            .ok_or_else(|| Failure::refused(Rejection::LeaseUnknown { lease }, None))
    }

    fn satisfies(&self, needs: Needs) -> bool {
        match needs {
            Needs::Nothing | Needs::AnyToken => true,
            Needs::Reads => self.role != Role::Subscriber,
            Needs::Leases => matches!(self.role, Role::Operator | Role::Tenant),
            Needs::Subscribes => self.role != Role::ReadOnly,
            Needs::Operator => self.role == Role::Operator,
            Needs::Everything => self.sees_all(),
        }
    }
}

impl FromRequestParts<Api> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Failure> {
        parts.extensions.get::<Self>().cloned().ok_or_else(missing)
    }
}

/// Lets a request through when its token satisfies what the endpoint needs.
pub async fn require(
    State((api, needs)): State<(Api, Needs)>,
    mut request: Request,
    next: Next,
) -> Result<Response, Failure> {
    if needs != Needs::Nothing {
        let bearer = shown(request.headers())?;
        let caller = identify(&api, &bearer).await?;
        if !caller.satisfies(needs) {
            return Err(Failure::not_allowed(match needs {
                Needs::Operator => "only an operator's token may do this",
                Needs::Everything => "only a token that is bound to no tenant may do this",
                _ => "the role of this token does not allow this",
            }));
        }
        request.extensions_mut().insert(caller);
    }
    Ok(next.run(request).await)
}

/// The token that a request shows.
pub fn shown(headers: &HeaderMap) -> Result<Bearer, Failure> {
    let value = headers.get(AUTHORIZATION).ok_or_else(missing)?;
    let text = value.to_str().ok().and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token)
    });
    let malformed = |detail: String| Failure::new(StatusCode::UNAUTHORIZED, code::TOKEN_MALFORMED, detail);
    let token = text.ok_or_else(|| malformed("the Authorization header is not `Bearer` and a token".to_owned()))?;
    token
        .parse()
        .map_err(|error: crate::bearer::BearerError| malformed(error.to_string()))
}

fn missing() -> Failure {
    let detail = "show an access token: set HOLDFAST_TOKEN, or send `Authorization: Bearer` and the token";
    Failure::new(StatusCode::UNAUTHORIZED, code::TOKEN_MISSING, detail)
}

/// Finds who the token speaks for. A token that this replica does not know yet is looked up again in fresh state, so that a token
/// works on every node as soon as the answer that made it was given.
pub(super) async fn identify(api: &Api, bearer: &Bearer) -> Result<Caller, Failure> {
    let parts = api.parts();
    let now = Timestamp(parts.clock.wall_ms());
    let state = parts.committed.state();
    if state.access_tokens.contains_key(&bearer.id) {
        return judge(&state, bearer, now);
    }
    let fresh = tokio::time::timeout(parts.limits.propose_timeout, parts.linearize.linearize()).await;
    if let Ok(Ok(_)) = fresh {
        return judge(&parts.committed.state(), bearer, now);
    }
    judge(&state, bearer, now)
}

/// Judges a token against a state. An unknown token takes as long as a wrong secret and is told the same.
pub fn judge(state: &Machine, bearer: &Bearer, now: Timestamp) -> Result<Caller, Failure> {
    let refuse = |code: &str, detail: String| Err(Failure::new(StatusCode::UNAUTHORIZED, code, detail));
    let access: Option<&Access> = state.access_tokens.get(&bearer.id).map(AsRef::as_ref);
    let digest = access.map(|access| access.token.secret).unwrap_or_default();
    let proven = bearer.proves(&digest);
    let Some(access) = access.filter(|_| proven) else {
        let detail = format!(
            "token {} is not valid here: copy the whole token again, or ask an operator for one",
            bearer.id
        );
        return refuse("token-unknown", detail);
    };
    if access.revoked {
        return refuse(
            "token-revoked",
            format!("token {} was revoked; ask an operator for a new one", bearer.id),
        );
    }
    if let Some(expired) = access.token.expires.filter(|expires| *expires <= now) {
        let detail = format!(
            "token {} expired {} ago, at {expired}; ask an operator for a new one (`holdfast token create`)",
            bearer.id,
            Span::seconds(now.since(expired).0 / 1_000)
        );
        return refuse("token-expired", detail);
    }
    Ok(Caller {
        token: bearer.id,
        role: access.token.role,
        tenant: access.token.tenant.clone(),
        project: access.token.project.clone(),
    })
}

/// How long a bearer's token still holds; `None` when it was revoked, has expired, or allows something else by now.
pub fn holds_for(state: &Machine, caller: &Caller, now: Timestamp) -> Option<Duration> {
    let access = state.access_tokens.get(&caller.token)?;
    if access.revoked || access.token.role != caller.role || access.token.tenant != caller.tenant {
        return None;
    }
    match access.token.expires {
        None => Some(Duration::MAX),
        Some(expires) => (expires > now).then(|| Duration::from_millis(expires.0 - now.0)),
    }
}
