//! The cluster as it was: its state after an earlier entry, folded from the event log.
//!
//! Serves the reads that say `?at=INDEX`. What was folded last is kept, so that going on from there costs only what happened since. The
//! one rule: a state of the past is the fold of every event up to its entry, or is not given at all.

use std::sync::Arc;

use axum::http::StatusCode;
use holdfast_storage::machine::state::State;

use super::Api;
use super::problem::Failure;
use super::read::fresh;
use super::seam::HistoryError;
use crate::wire::problem::code;

/// Events folded before other work gets its turn.
const PAGE: usize = 4_096;

/// The state that was folded last.
#[derive(Debug, Default)]
pub struct Past(tokio::sync::Mutex<Option<Arc<State>>>);

/// The state after entry `index`.
pub async fn at(api: &Api, index: u64) -> Result<Arc<State>, Failure> {
    let committed = &api.parts().committed;
    let mut present = committed.state();
    if index > present.applied.index {
        present = fresh(api).await?.state;
    }
    if index > present.applied.index {
        let detail = format!(
            "entry {index} is not there yet; the newest is {}",
            present.applied.index
        );
        return Err(Failure::new(StatusCode::BAD_REQUEST, code::CURSOR_FROM_FUTURE, detail));
    }
    if index == present.applied.index {
        return Ok(present);
    }
    // One at a time: each may fold the whole history.
    let mut kept = api.past.0.lock().await;
    let start = kept.take().filter(|state| state.applied.index <= index);
    let state = fold(api, start.unwrap_or_default(), index).await?;
    *kept = Some(state.clone());
    Ok(state)
}

async fn fold(api: &Api, mut state: Arc<State>, index: u64) -> Result<Arc<State>, Failure> {
    let committed = &api.parts().committed;
    loop {
        let records = committed.events(state.cluster.cursor, PAGE).await.map_err(gone)?;
        let past = Arc::make_mut(&mut state);
        let mut ended = records.is_empty();
        for record in &records {
            ended = record.cursor.index > index;
            if ended {
                break;
            }
            past.fold(record);
            past.applied.stamp = record.at;
        }
        past.applied.index = if ended { index } else { past.cluster.cursor.index };
        if ended {
            return Ok(state);
        }
        tokio::task::yield_now().await;
    }
}

fn gone(error: HistoryError) -> Failure {
    match error {
        HistoryError::Compacted { through } | HistoryError::Reset { through } => {
            let detail = format!(
                "this node has dropped the events up to {through}, from which that state follows; another node may have them"
            );
            Failure::new(StatusCode::GONE, code::COMPACTED, detail)
        }
        error => error.into(),
    }
}
