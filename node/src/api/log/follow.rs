//! Follows the output of a lease over its members and places.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::header::AUTHORIZATION;
use futures_util::StreamExt;
use futures_util::future::join_all;
use holdfast_proto::event::Event;
use holdfast_proto::id::{Attempt, Cursor, Epoch, LeaseId, NodeId};
use holdfast_proto::lease::LeaseStatus;
use holdfast_proto::node::NodeStatus;
use holdfast_storage::machine::state::State as Machine;
use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};

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

/// Time for a member's node to begin its answer. One that hangs takes the connection and never does.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Silence after which a member's node counts as hanging: it gives a sign of life every 5 s.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Most events read to find where a lease was before.
const EVENTS_MAX: usize = 10_000;

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
/// Ranks and their nodes.
type Members = Vec<(u32, NodeId)>;

impl Follow {
    /// Reads every member, place after place, from the first place on that the client does not know.
    pub async fn run(&self) {
        let mut shown = self.known();
        let current = self.look().map_or(Epoch(0), |(seen, _)| seen.0);
        for (epoch, members) in self.earlier(shown.unwrap_or_default(), current).await {
            self.head(&mut shown, epoch, &members).await;
            let reads = members
                .iter()
                .map(|(rank, node)| self.member(*rank, *node, epoch, false));
            join_all(reads).await;
        }
        loop {
            let Some((seen, members)) = self.look() else { return };
            if !members.is_empty() {
                self.head(&mut shown, seen.0, &members).await;
                let reads = members
                    .iter()
                    .map(|(rank, node)| self.member(*rank, *node, seen.0, self.follow));
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
    pub async fn here(&self, rank: u32, epoch: Epoch, follow: bool) {
        let line = |(position, text)| LogLine {
            rank,
            epoch: epoch.0,
            position,
            text,
            note: None,
        };
        let mut lines = Lines::from(self.position(rank, epoch));
        loop {
            let request = self.request(epoch, lines.end(), follow);
            let chunk = match self.api.parts().logs.read(request).await {
                Ok(chunk) => chunk,
                Err(why) => {
                    self.note(rank, epoch, format!("the rest of epoch {epoch} is missing: {why}"))
                        .await;
                    break;
                }
            };
            if chunk.from > lines.end() {
                let lost = chunk.from - lines.end();
                self.note(
                    rank,
                    epoch,
                    format!("{lost} bytes are missing: older output is not kept"),
                )
                .await;
                lines.skip_to(chunk.from);
            }
            for whole in lines.push(&chunk.bytes) {
                if !self.give(line(whole)).await {
                    return;
                }
            }
            if chunk.bytes.is_empty() {
                if chunk.ended || !follow {
                    break;
                }
                sleep(PAUSE).await;
            }
        }
        if let Some(rest) = lines.finish() {
            self.give(line(rest)).await;
        }
    }

    /// The placement that the client has read last.
    fn known(&self) -> Option<Epoch> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.values().map(|place| place.epoch).max()
    }

    /// The placements from one that the client knows up to the present one, which is left out, with their members.
    async fn earlier(&self, known: Epoch, current: Epoch) -> Vec<(Epoch, Members)> {
        if current.0 <= 1 {
            return Vec::new();
        }
        let committed = &self.api.parts().committed;
        let records = committed.lease_events(self.lease, Cursor::default(), EVENTS_MAX).await;
        let records = records.unwrap_or_default();
        let placed = records.iter().filter_map(|record| match &record.event {
            Event::PlacementCommitted { epoch, allocations, .. } if *epoch >= known && *epoch < current => {
                let members = allocations.iter().map(|member| (member.rank, member.node));
                let wanted = members.filter(|(rank, _)| self.rank.is_none_or(|only| only == *rank));
                Some((*epoch, wanted.collect()))
            }
            _ => None,
        });
        placed.collect()
    }

    /// Says where what follows was written, once more than one placement is shown.
    async fn head(&self, shown: &mut Option<Epoch>, epoch: Epoch, members: &[(u32, NodeId)]) {
        let moved = shown
            .replace(epoch)
            .map_or(epoch.0 > 1 || self.has_moved(epoch), |last| last != epoch);
        if let Some((rank, _)) = members.first().filter(|_| moved) {
            let state = self.api.parts().committed.state();
            let mut labels: Vec<String> = members.iter().map(|(_, node)| label(&state, *node)).collect();
            labels.dedup();
            self.note(*rank, epoch, format!("— epoch {epoch} on {} —", labels.join(", ")))
                .await;
        }
    }

    /// Whether the lease has been placed again since.
    fn has_moved(&self, epoch: Epoch) -> bool {
        self.look().is_some_and(|(seen, _)| seen.0 > epoch)
    }

    /// Tells the reader something that is no output.
    async fn note(&self, rank: u32, epoch: Epoch, text: String) {
        let position = self.position(rank, epoch);
        // A client that has gone is found out by the next line.
        let _ = self
            .out
            .send(LogLine {
                rank,
                epoch: epoch.0,
                position,
                text: String::new(),
                note: Some(text),
            })
            .await;
    }

    fn look(&self) -> Option<(Seen, Members)> {
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

    async fn member(&self, rank: u32, node: NodeId, epoch: Epoch, follow: bool) {
        if node == self.api.parts().node {
            return self.here(rank, epoch, follow).await;
        }
        let mut told = false;
        loop {
            let Err(why) = self.remote(rank, node, epoch, follow).await else {
                return;
            };
            if !told {
                let going = if follow {
                    "waiting for it"
                } else {
                    "that part is missing"
                };
                self.note(rank, epoch, format!("the output of epoch {epoch} is on {why}; {going}"))
                    .await;
                told = true;
            }
            if !follow || self.out.is_closed() {
                return;
            }
            sleep(PAUSE).await;
        }
    }

    /// Reads a member's output from its node; says why when it was not read to its end.
    async fn remote(&self, rank: u32, node: NodeId, epoch: Epoch, follow: bool) -> Result<(), String> {
        let state = self.api.parts().committed.state();
        let label = label(&state, node);
        let Some(known) = state.nodes.get(&node) else {
            return Err(format!("{label}, which is no node of the cluster any more"));
        };
        let why = || match known.status {
            NodeStatus::Unreachable | NodeStatus::Lost => {
                format!("{label}, which cannot be heard since {}", known.since)
            }
            NodeStatus::Removed => format!("{label}, which was removed"),
            NodeStatus::Joined | NodeStatus::Ready => format!("{label}, which does not answer"),
        };
        let address = known.spec.address.to_string();
        let position = self.position(rank, epoch);
        let peers = &self.api.parts().peers;
        let mut asked = member_log(peers, &address, self.lease, rank, epoch, position, follow);
        if let Some(authorization) = &self.authorization {
            asked = asked.header(AUTHORIZATION, authorization.clone());
        }
        let answered = timeout(ANSWER_WITHIN, asked.send()).await.map_err(|_| why())?;
        let response = answered
            .and_then(reqwest::Response::error_for_status)
            .map_err(|_| why())?;
        let mut bytes = response.bytes_stream();
        let mut lines = Lines::of_json();
        while let Some(chunk) = timeout(SILENCE_MAX, bytes.next()).await.map_err(|_| why())? {
            let chunk = chunk.map_err(|_| why())?;
            for (_, text) in lines.push(&chunk) {
                if text.trim_end().is_empty() {
                    continue; // A sign of life.
                }
                let line = serde_json::from_str::<LogLine>(&text).map_err(|_| why())?;
                if !self.give(line).await {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn request(&self, epoch: Epoch, after: u64, follow: bool) -> LogRequest {
        LogRequest {
            lease: self.lease,
            epoch,
            after,
            bytes_max: READ_BYTES,
            wait: follow,
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

/// A node's label; its id when it is no longer known.
fn label(state: &Machine, node: NodeId) -> String {
    let known = state.nodes.get(&node);
    known.map_or_else(|| node.to_string(), |known| known.spec.label.to_string())
}
