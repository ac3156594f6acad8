//! Serves the interface over TLS.
//!
//! The one rule: there is no way to serve it in clear, and none to serve it without tokens.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use hyper_util::rt::TokioTimer;
use rustls::ServerConfig;

use super::Api;

/// Time that open requests have to end when the node stops; streams are cut then.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// Most headers of one request.
const HEADERS_MAX: usize = 64;
/// Most bytes of one request's head.
const HEAD_BYTES_MAX: usize = 32 * 1_024;

/// Serves `api` on `listener` until `stop` completes.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(
    api: &Api,
    listener: TcpListener,
    tls: ServerConfig,
    stop: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let handle: Handle<SocketAddr> = Handle::new();
    let mut server =
        axum_server::from_tcp_rustls(listener, RustlsConfig::from_config(Arc::new(tls)))?.handle(handle.clone());
    server
        .http_builder()
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(api.limits().header_timeout)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    let router = api.router();
    let stopping = async {
        stop.await;
        handle.graceful_shutdown(Some(STOP_GRACE));
        std::future::pending::<()>().await;
    };
    tokio::select! {
        served = server.serve(router.into_make_service()) => served,
        () = stopping => Ok(()),
    }
}
