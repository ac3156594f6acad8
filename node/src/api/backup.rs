//! `/v1/cluster/backup`: the whole state of one entry, as it is written into a backup.
//!
//! The state is captured when the read is confirmed and sent piece by piece, so a large one takes no second copy. The
//! one rule: a transfer that breaks off lacks the seal at the end, so nobody can take it for a whole backup.

use std::io;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use holdfast_storage::backup::{self, BackupError};
use tokio::sync::mpsc;

use super::problem::Failure;
use super::read::Reading;

/// Pieces that wait for a slow client.
const QUEUE: usize = 16;

/// Why a backup was not sent to its end.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error(transparent)]
    Backup(#[from] BackupError),
    #[error("the client has gone")]
    Gone,
}

/// Sends a backup of the whole cluster.
#[utoipa::path(get, path = "/v1/cluster/backup", tag = "cluster",
    params(("consistency" = Option<String>, Query, description = "`linearizable` (default) or `stale`")),
    responses((status = 200, description = "A backup; verify it before it is relied on", content_type = "application/octet-stream", body = Vec<u8>)))]
pub async fn backup(reading: Reading) -> Result<Response, Failure> {
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(QUEUE);
    let state = reading.state;
    tokio::task::spawn_blocking(move || {
        let sent = backup::write(&state, env!("CARGO_PKG_VERSION"), |piece| {
            let piece = Bytes::copy_from_slice(piece);
            sender.blocking_send(Ok(piece)).map_err(|_| SendError::Gone)
        });
        if let Err(SendError::Backup(error)) = sent {
            // The client may be gone too; then nobody is told.
            let _ = sender.blocking_send(Err(io::Error::other(error)));
        }
    });
    let pieces = stream::unfold(receiver, |mut receiver| async {
        Some((receiver.recv().await?, receiver))
    });
    Ok(([(CONTENT_TYPE, "application/octet-stream")], Body::from_stream(pieces)).into_response())
}
