//! The OpenAPI document, made from the table of endpoints.

use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::path::{HttpMethod, Operation};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, OpenApi, OpenApiBuilder, Paths, Ref, ResponseBuilder,
};
use utoipa::{PartialSchema, ToSchema};

use super::auth::Needs;
use super::route::{Route, table};
use crate::wire::problem::Problem;

/// The document of every endpoint.
#[utoipa::path(get, path = "/openapi.json", tag = "about", responses((status = 200, description = "This document", content_type = "application/json", body = Object)))]
pub async fn document() -> Response {
    let json = openapi().to_json().unwrap_or_default();
    ([(CONTENT_TYPE, "application/json")], Bytes::from(json)).into_response()
}

/// Builds the document.
pub fn openapi() -> OpenApi {
    let mut paths = Paths::new();
    let mut components = ComponentsBuilder::new()
        .schema(Problem::name(), Problem::schema())
        .security_scheme(
            "bearer",
            SecurityScheme::Http(
                HttpBuilder::new()
                    .scheme(HttpAuthScheme::Bearer)
                    .bearer_format("hfa")
                    .build(),
            ),
        );
    for route in table() {
        for (name, schema) in &route.schemas {
            components = components.schema(name.clone(), schema.clone());
        }
        let (path, method, operation) = documented(route);
        paths.add_path_operation(path, vec![method], operation);
    }
    OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Holdfast")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some(
                    "Leases GPUs. Times are milliseconds of UTC, money is micro-units of the tariff's currency.",
                ))
                .build(),
        )
        .paths(paths)
        .components(Some(components.build()))
        .build()
}

/// Adds what is the same for all endpoints: who may call, and how failures look.
fn documented(route: Route) -> (String, HttpMethod, Operation) {
    let mut operation = route.operation;
    operation.operation_id = Some(name_of(&route.method, &route.path));
    let problem = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name("Problem")))
        .build();
    let response = ResponseBuilder::new()
        .description("Refused or failed; the code says how")
        .content("application/problem+json", problem)
        .build();
    operation
        .responses
        .responses
        .insert("default".to_owned(), response.into());
    if route.needs != Needs::Nothing {
        operation.security = Some(vec![SecurityRequirement::new("bearer", Vec::<String>::new())]);
    }
    (route.path, route.method, operation)
}

/// The name that generated clients give an operation: its method and the words of its path.
fn name_of(method: &HttpMethod, path: &str) -> String {
    let verb = match method {
        HttpMethod::Post => "post",
        HttpMethod::Put => "put",
        HttpMethod::Delete => "delete",
        _ => "get",
    };
    let words = path
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty() && *word != "v1");
    std::iter::once(verb).chain(words).collect::<Vec<_>>().join("_")
}
