//! Every endpoint, in one table.
//!
//! Owns the table that the router, the OpenAPI document and the tests are made from. An endpoint's path and method are those of its
//! documentation, so a route that is not documented cannot exist. The one rule: each line says whose token the endpoint takes.

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::handler::Handler;
use axum::http::{Method, StatusCode};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{MethodFilter, MethodRouter, on};
use utoipa::__dev::SchemaReferences;
use utoipa::Path;
use utoipa::openapi::path::{HttpMethod, Operation};
use utoipa::openapi::{RefOr, Schema};

use super::auth::{Needs, require};
use super::problem::Failure;
use super::{
    Api, backup, bill, cluster, drain, edge, event, gpu, gzip, health, join, lease, log, metrics, node, openapi,
    preview, queue, quote, schema, state, subscription, tenant, token,
};
use crate::wire::problem::code;

/// One endpoint.
pub struct Route {
    /// Its path, with `{names}` for the parts that vary.
    pub path: String,
    /// Its method.
    pub method: HttpMethod,
    /// Whose token it takes.
    pub needs: Needs,
    /// Its documentation.
    pub operation: Operation,
    /// The schemas that the documentation names.
    pub schemas: Vec<(String, RefOr<Schema>)>,
    serve: MethodRouter<Api>,
}

/// Every endpoint.
#[rustfmt::skip]
pub fn table() -> Vec<Route> {
    vec![
        route::<lease::__path_create, _, _>(Needs::Leases, lease::create),
        route::<lease::__path_list, _, _>(Needs::Reads, lease::list),
        route::<lease::__path_show, _, _>(Needs::Reads, lease::show),
        route::<lease::__path_release, _, _>(Needs::Leases, lease::release),
        route::<lease::__path_renew, _, _>(Needs::Leases, lease::renew),
        route::<lease::__path_history, _, _>(Needs::Reads, lease::history),
        route::<log::__path_logs, _, _>(Needs::Reads, log::logs),
        route::<bill::__path_bill, _, _>(Needs::Reads, bill::bill),
        route::<queue::__path_queue, _, _>(Needs::Reads, queue::queue),
        route::<quote::__path_quote, _, _>(Needs::Leases, quote::quote),
        route::<preview::__path_preview, _, _>(Needs::Leases, preview::preview),
        route::<preview::__path_of_lease, _, _>(Needs::Reads, preview::of_lease),
        route::<node::__path_list, _, _>(Needs::Reads, node::list),
        route::<node::__path_cordon, _, _>(Needs::Operator, node::cordon),
        route::<node::__path_uncordon, _, _>(Needs::Operator, node::uncordon),
        route::<drain::__path_drain, _, _>(Needs::Operator, drain::drain),
        route::<drain::__path_drained, _, _>(Needs::Operator, drain::drained),
        route::<node::__path_remove, _, _>(Needs::Operator, node::remove),
        route::<gpu::__path_list, _, _>(Needs::Reads, gpu::list),
        route::<gpu::__path_grade, _, _>(Needs::Operator, gpu::grade),
        route::<event::__path_events, _, _>(Needs::AnyToken, event::events),
        route::<subscription::__path_create, _, _>(Needs::Subscribes, subscription::create),
        route::<subscription::__path_list, _, _>(Needs::AnyToken, subscription::list),
        route::<subscription::__path_show, _, _>(Needs::AnyToken, subscription::show),
        route::<subscription::__path_acknowledge, _, _>(Needs::Subscribes, subscription::acknowledge),
        route::<subscription::__path_remove, _, _>(Needs::Subscribes, subscription::remove),
        route::<schema::__path_list, _, _>(Needs::Nothing, schema::list),
        route::<schema::__path_show, _, _>(Needs::Nothing, schema::show),
        route::<cluster::__path_status, _, _>(Needs::AnyToken, cluster::status),
        route::<backup::__path_backup, _, _>(Needs::Operator, backup::backup),
        route::<state::__path_state, _, _>(Needs::Reads, state::state),
        route::<cluster::__path_note, _, _>(Needs::Operator, cluster::note),
        route::<cluster::__path_tariff, _, _>(Needs::AnyToken, cluster::tariff),
        route::<cluster::__path_set_tariff, _, _>(Needs::Operator, cluster::set_tariff),
        route::<token::__path_create, _, _>(Needs::Operator, token::create),
        route::<token::__path_list, _, _>(Needs::Operator, token::list),
        route::<token::__path_revoke, _, _>(Needs::Operator, token::revoke),
        route::<tenant::__path_set, _, _>(Needs::Operator, tenant::set),
        route::<tenant::__path_limit, _, _>(Needs::Operator, tenant::limit),
        route::<tenant::__path_list, _, _>(Needs::Reads, tenant::list),
        route::<join::__path_join, _, _>(Needs::Nothing, join::join),
        route::<health::__path_healthz, _, _>(Needs::Nothing, health::healthz),
        route::<health::__path_readyz, _, _>(Needs::Nothing, health::readyz),
        route::<metrics::__path_metrics, _, _>(Needs::Everything, metrics::metrics),
        route::<openapi::__path_document, _, _>(Needs::Nothing, openapi::document),
    ]
}

/// The router of every endpoint, and of the paths that are none.
pub fn router(api: &Api) -> Router {
    let mut router = Router::new();
    for route in table() {
        let guarded = route
            .serve
            .layer(from_fn_with_state((api.clone(), route.needs), require));
        router = router.route(&route.path, guarded);
    }
    router
        .fallback(|| async {
            let detail = "there is no such endpoint; /openapi.json lists all of them";
            Failure::new(StatusCode::NOT_FOUND, code::NO_SUCH_PATH, detail)
        })
        .method_not_allowed_fallback(|method: Method| async move {
            let detail = format!("this endpoint does not take {method}; /openapi.json says what it takes");
            Failure::new(StatusCode::METHOD_NOT_ALLOWED, code::METHOD_NOT_ALLOWED, detail)
        })
        .layer(DefaultBodyLimit::max(api.limits().body_bytes_max))
        .layer(from_fn_with_state(api.compressors.clone(), gzip::squeeze))
        .layer(from_fn_with_state(api.clone(), edge::bound))
        .layer(from_fn(edge::harden))
        .with_state(api.clone())
}

fn route<P, H, T>(needs: Needs, endpoint: H) -> Route
where
    P: Path + SchemaReferences,
    H: Handler<T, Api>,
    T: 'static,
{
    let method = P::methods().remove(0);
    let mut schemas = Vec::new();
    P::schemas(&mut schemas);
    Route {
        path: P::path(),
        serve: on(filter(&method), endpoint),
        method,
        needs,
        operation: P::operation(),
        schemas,
    }
}

fn filter(method: &HttpMethod) -> MethodFilter {
    match method {
        HttpMethod::Post => MethodFilter::POST,
        HttpMethod::Put => MethodFilter::PUT,
        HttpMethod::Delete => MethodFilter::DELETE,
        _ => MethodFilter::GET,
    }
}
