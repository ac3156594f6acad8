//! Follows the output of a lease over its members and places.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::header::AUTHORIZATION;
use futures_util::StreamExt;
use futures_util::future::join_all;
use holdfast_proto::id::{Attempt, Epoch, LeaseId, NodeId};
use holdfast_proto::lease::LeaseStatus;
use tokio::sync::mpsc::Sender;
use tokio::time::sleep;

use super::lines::Lines;
use crate::api::Api;
use crate::api::forward::member_log;
use crate::api::seam::LogRequest;
use crate::wire::lease::LogLine;

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1_024;
/// Wait before an answer without bytes is asked for again, and before a member that cannot be reached is.
const PAUSE: Duration = Duration::from_millis(100);
/// How long members are read after their lease has ended; one that is gone would be waited for until then.
const LAST_READ: Duration = Duration::from_secs(5);

/// How far one member's output was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// The placement that wrote it.
    pub epoch: Epoch,
    /// Bytes read.
    pub position: u64,
}

/// One client that reads the output of one lease.
pub struct Follow {
    /// The interface.
    pub api: Api,
    /// The lease.
    pub lease: LeaseId,
    /// Only this member's.
    pub rank: Option<u32>,
    /// Go on until the lease has ended.
    pub follow: bool,
    /// What the client has, by rank.
    pub places: Mutex<BTreeMap<u32, Place>>,
    /// What the client showed, to show it to other nodes.
    pub authorization: Option<HeaderValue>,
    /// Where lines go.
    pub out: Sender<LogLine>,
}

/// What changes when there may be more to read.
type Seen = (Epoch, Attempt, LeaseStatus);

impl Follow {
    /// Reads every member, place after place.
    pub async fn run(&self) {
        loop {
            let Some((seen, members)) = self.look() else { return };
            if !members.is_empty() {
                let reads = members.iter().map(|(rank, node)| self.member(*rank, *node, seen.0));
                tokio::select! {
                    _ = join_all(reads) => {}
                    () = self.overtaken(seen.0) => {}
                    () = self.out.closed() => return,
                }
            }
            if seen.2.is_ended() || !self.follow {
                return;
            }
            tokio::select! {
                () = self.changed(seen) => {}
                () = self.out.closed() => return,
            }
        }
    }

    /// Reads the output that was written on this node.
    pub async fn here(&self, rank: u32, epoch: Epoch) {
        let mut lines = Lines::from(self.position(rank, epoch));
        while let Ok(chunk) = self.api.parts().logs.read(self.request(epoch, lines.end())).await {
            if chunk.from > lines.end() {
                lines.skip_to(chunk.from);
            }
            for (position, text) in lines.push(&chunk.bytes) {
                if !self
                    .give(LogLine {
                        rank,
                        epoch: epoch.0,
                        position,
                        text,
                    })
                    .await
                {
                    return;
                }
            }
            if chunk.bytes.is_empty() {
                if chunk.ended || !self.follow {
                    break;
                }
                sleep(PAUSE).await;
            }
        }
        if let Some((position, text)) = lines.finish() {
            self.give(LogLine {
                rank,
                epoch: epoch.0,
                position,
                text,
            })
            .await;
        }
    }

    fn look(&self) -> Option<(Seen, Vec<(u32, NodeId)>)> {
        let state = self.api.parts().committed.state();
        let lease = state.leases.get(&self.lease)?;
        let placement = lease.placement.as_ref();
        let members = placement.into_iter().flat_map(|placement| &placement.members);
        let wanted = members.map(|member| (member.allocation.rank, member.allocation.node));
        let members = wanted
            .filter(|(rank, _)| self.rank.is_none_or(|only| only == *rank))
            .collect();
        let attempt = placement.map(|placement| placement.attempt).unwrap_or_default();
        Some(((lease.epoch, attempt, lease.status), members))
    }

    /// Waits until the lease is in another state than `seen`, or forgotten.
    async fn changed(&self, seen: Seen) {
        let committed = &self.api.parts().committed;
        loop {
            let index = committed.state().applied.index;
            match self.look() {
                Some((now, _)) if now == seen => committed.advanced(index).await,
                _ => return,
            }
        }
    }

    /// Waits until there is no point in reading this placement any more.
    async fn overtaken(&self, epoch: Epoch) {
        let committed = &self.api.parts().committed;
        loop {
            let index = committed.state().applied.index;
            match self.look() {
                Some((seen, _)) if seen.0 == epoch && seen.2.is_ended() => return sleep(LAST_READ).await,
                Some((seen, _)) if seen.0 == epoch => committed.advanced(index).await,
                _ => return,
            }
        }
    }

    async fn member(&self, rank: u32, node: NodeId, epoch: Epoch) {
        if node == self.api.parts().node {
            return self.here(rank, epoch).await;
        }
        loop {
            let whole = self.remote(rank, node, epoch).await;
            if whole || !self.follow || self.out.is_closed() {
                return;
            }
            sleep(PAUSE).await;
        }
    }

    /// Reads a member's output from its node; tells whether it ended as it should.
    async fn remote(&self, rank: u32, node: NodeId, epoch: Epoch) -> bool {
        let state = self.api.parts().committed.state();
        let Some(address) = state.nodes.get(&node).map(|node| node.spec.address.to_string()) else {
            return true;
        };
        let position = self.position(rank, epoch);
        let mut asked = member_log(
            &self.api.parts().peers,
            &address,
            self.lease,
            rank,
            epoch,
            position,
            self.follow,
        );
        if let Some(authorization) = &self.authorization {
            asked = asked.header(AUTHORIZATION, authorization.clone());
        }
        let Ok(response) = asked.send().await.and_then(reqwest::Response::error_for_status) else {
            return false;
        };
        let mut bytes = response.bytes_stream();
        let mut lines = Lines::of_json();
        while let Some(chunk) = bytes.next().await {
            let Ok(chunk) = chunk else { return false };
            for (_, text) in lines.push(&chunk) {
                if text.trim_end().is_empty() {
                    continue; // A sign of life.
                }
                let Ok(line) = serde_json::from_str::<LogLine>(&text) else {
                    return false;
                };
                if !self.give(line).await {
                    return true;
                }
            }
        }
        true
    }

    fn request(&self, epoch: Epoch, after: u64) -> LogRequest {
        LogRequest {
            lease: self.lease,
            epoch,
            after,
            bytes_max: READ_BYTES,
            wait: self.follow,
        }
    }

    /// How far a member was read in a placement; a new placement's output begins anew.
    fn position(&self, rank: u32, epoch: Epoch) -> u64 {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places
            .get(&rank)
            .filter(|place| place.epoch == epoch)
            .map_or(0, |place| place.position)
    }

    /// Gives a line to the client; tells whether the client is still there.
    async fn give(&self, line: LogLine) -> bool {
        let place = Place {
            epoch: Epoch(line.epoch),
            position: line.position,
        };
        let rank = line.rank;
        let sent = self.out.send(line).await.is_ok();
        if sent {
            self.places
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(rank, place);
        }
        sent
    }
}
