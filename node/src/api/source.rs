//! Committed state and history of this replica, with the projections of ended leases.
//!
//! Puts storage's [`CommittedSource`] and [`Index`] behind the interface's seam, and keeps the index up to date. Old events and the
//! index are read from disk, so reads leave the runtime's workers. The one rule: the index may lag or be damaged; what it does not have
//! is read from the event log itself.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_proto::event::EventRecord;
use holdfast_proto::id::{Cursor, LeaseId, TenantId};
use holdfast_storage::event_log::{EventsError, RawEvent};
use holdfast_storage::index::{EndedLease, Index, IndexError};
use holdfast_storage::machine::state::State;
use holdfast_storage::source::CommittedSource;

use super::seam::{Committed, HistoryError};

/// Events read at once when the index does not have them yet.
const SCAN_EVENTS: usize = 1_024;
/// Wait after a change, so that what comes together is folded together.
const FOLD_PAUSE: Duration = Duration::from_millis(200);
/// Wait before a store that failed is made again.
const MEND_PAUSE: Duration = Duration::from_secs(5);

/// A replica's source and its index.
pub struct Indexed {
    source: Arc<dyn CommittedSource>,
    index: Arc<Index>,
}

impl Indexed {
    /// Takes them over, and folds new events into the index from now on, until the replica stops.
    pub fn start(source: Arc<dyn CommittedSource>, index: Index) -> Arc<Self> {
        let here = Arc::new(Self {
            source,
            index: Arc::new(index),
        });
        tokio::spawn(keep_up(here.source.clone(), here.index.clone()));
        here
    }
}

async fn keep_up(source: Arc<dyn CommittedSource>, index: Arc<Index>) {
    let mut applied = source.applied();
    loop {
        let fold = index.clone();
        match tokio::task::spawn_blocking(move || fold.catch_up()).await {
            Ok(Ok(caught_up)) if caught_up.events > 0 => continue,
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::warn!(error = %error, "the index of ended leases cannot be kept up to date; trying again");
                tokio::time::sleep(MEND_PAUSE).await;
                continue;
            }
            Err(_) => return,
        }
        if applied.changed().await.is_none() {
            let sync = index.clone();
            let _ = tokio::task::spawn_blocking(move || sync.sync()).await;
            return;
        }
        tokio::time::sleep(FOLD_PAUSE).await;
    }
}

impl Committed for Indexed {
    fn state(&self) -> Arc<State> {
        self.source.state()
    }

    fn advanced(&self, index: u64) -> BoxFuture<'_, ()> {
        let mut applied = self.source.applied();
        Box::pin(async move {
            if applied.reached(index.saturating_add(1)).await.is_none() {
                std::future::pending::<()>().await;
            }
        })
    }

    fn events(&self, after: Cursor, limit: usize) -> BoxFuture<'_, Result<Vec<Arc<EventRecord>>, HistoryError>> {
        if let Some(recent) = self.source.recent_events(after, limit) {
            return Box::pin(std::future::ready(Ok(recent)));
        }
        let source = self.source.clone();
        off_worker(move || read(source.as_ref(), after, limit))
    }

    fn raw_events(&self, after: Cursor, bytes: usize) -> BoxFuture<'_, Result<Option<Vec<RawEvent>>, HistoryError>> {
        let source = self.source.clone();
        off_worker(move || source.raw_events(after, bytes).map_err(told))
    }

    fn floor(&self) -> Cursor {
        self.source.events_floor()
    }

    fn grown(&self, after: Cursor) -> BoxFuture<'_, ()> {
        let (source, mut applied) = (self.source.clone(), self.source.applied());
        Box::pin(async move {
            while source.state().cluster.cursor <= after {
                if applied.changed().await.is_none() {
                    std::future::pending::<()>().await;
                }
            }
        })
    }

    fn lease_events(
        &self,
        lease: LeaseId,
        after: Cursor,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Arc<EventRecord>>, HistoryError>> {
        let (source, index) = (self.source.clone(), self.index.clone());
        off_worker(move || {
            let born = Cursor {
                index: lease.index.saturating_sub(1),
                sub: u32::MAX,
            };
            let indexed = index
                .position()
                .and_then(|(at, _)| Ok((at, index.events_of(lease, after, limit)?)));
            let (mut at, positions) = indexed.unwrap_or_default();
            at = at.max(after).max(born);
            let mut found = Vec::with_capacity(positions.len());
            for position in positions {
                found.extend(read(source.as_ref(), before(position), 1)?);
            }
            // What the index has not folded yet.
            while found.len() < limit {
                let page = read(source.as_ref(), at, SCAN_EVENTS)?;
                let Some(last) = page.last() else { break };
                at = last.cursor;
                found.extend(page.into_iter().filter(|record| record.event.lease() == Some(lease)));
            }
            found.truncate(limit);
            Ok(found)
        })
    }

    fn ended(
        &self,
        tenant: Option<TenantId>,
        before: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<EndedLease>, HistoryError>> {
        let index = self.index.clone();
        off_worker(move || index.ended(tenant.as_ref(), before, limit).map_err(damaged))
    }

    fn ended_lease(&self, lease: LeaseId) -> BoxFuture<'_, Result<Option<EndedLease>, HistoryError>> {
        let index = self.index.clone();
        off_worker(move || index.ended_lease(lease).map_err(damaged))
    }
}

fn off_worker<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, HistoryError> + Send + 'static,
) -> BoxFuture<'static, Result<T, HistoryError>> {
    Box::pin(async move {
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|error| {
            Err(HistoryError::Failed {
                reason: error.to_string(),
            })
        })
    })
}

fn read(source: &dyn CommittedSource, after: Cursor, limit: usize) -> Result<Vec<Arc<EventRecord>>, HistoryError> {
    source.events(after, limit).map_err(told)
}

fn told(error: EventsError) -> HistoryError {
    match error {
        EventsError::Compacted { gone } => HistoryError::Compacted { through: gone },
        EventsError::Reset { gone } => HistoryError::Reset { through: gone },
        error => HistoryError::Failed {
            reason: crate::cli::error::chain(&error),
        },
    }
}

fn damaged(error: IndexError) -> HistoryError {
    HistoryError::Failed {
        reason: crate::cli::error::chain(&error),
    }
}

/// A position behind which `position` comes next.
fn before(position: Cursor) -> Cursor {
    match position.sub.checked_sub(1) {
        Some(sub) => Cursor {
            index: position.index,
            sub,
        },
        None => Cursor {
            index: position.index.saturating_sub(1),
            sub: u32::MAX,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_before_one_is_strictly_before_it() {
        for position in [
            Cursor { index: 5, sub: 3 },
            Cursor { index: 5, sub: 0 },
            Cursor { index: 1, sub: 0 },
        ] {
            assert!(before(position) < position);
        }
    }
}
