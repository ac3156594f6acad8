//! The sending side of a transfer, without any IO: what to ask next, and what an answer means.
//!
//! The courier drives one [`Push`] for each checkpoint and receiver: it carries the asks and brings back the replies,
//! in any order. The rule kept here: a piece follows the answer to the one before it in the same file, and every
//! answer's file and offset are compared with what was asked, so bytes never land where they do not belong.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use holdfast_proto::id::Fence;

use super::manifest::ReadManifest;
use super::wire::{CheckpointName, Need, PIECE_BYTES, Reply, Request};

/// Files that are sent at once. Four cover the round trip of a metro path; more would only lengthen queues.
pub const FILES_IN_FLIGHT: usize = 4;
/// Offers of one checkpoint before the push gives up: each follows a restart of the receiver or damaged bytes.
const OFFERS_MAX: u32 = 4;
/// Answers in a row that moved a file back or sideways before the push gives up.
const REWINDS_MAX: u32 = 16;

/// Where the body of an ask comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// There is none.
    Empty,
    /// The bytes of the manifest.
    Manifest,
    /// A part of a file.
    Part {
        /// Place in the manifest.
        file: u32,
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u32,
    },
}

/// One request to carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The request.
    pub request: Request,
    /// Its body.
    pub body: Body,
}

/// Why a push ended without the checkpoint being held.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The store was shown a newer token: this start is over.
    #[error("the store was shown a newer token, {}.{}", shown.token, shown.attempt)]
    Stale {
        /// The newer token.
        shown: Fence,
    },
    /// The receiver asked for, or spoke of, bytes that the manifest does not have.
    #[error("the receiver speaks of bytes that the manifest does not have")]
    Nonsense,
    /// The same bytes were refused or damaged again and again.
    #[error("the receiver did not come to hold the checkpoint after {OFFERS_MAX} offers")]
    NoProgress,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The offer must be sent.
    Offer,
    /// The offer was sent.
    Offering,
    /// Pieces are sent.
    Sending,
    /// The commit was sent.
    Committing,
}

/// One checkpoint on its way to one store.
#[derive(Debug)]
pub struct Push {
    name: CheckpointName,
    read: Arc<ReadManifest>,
    phase: Phase,
    offers: u32,
    rewinds: u32,
    /// Files that wait for their turn.
    queue: VecDeque<Need>,
    /// Files with a piece under way: file → (offset, bytes).
    flying: BTreeMap<u32, (u64, u32)>,
    outcome: Option<Result<(), PushError>>,
    /// Rises with each new offer; answers to asks of an earlier round are dropped.
    round: u32,
}

impl Push {
    /// A push that has not begun.
    pub fn new(name: CheckpointName, read: Arc<ReadManifest>) -> Self {
        Self {
            name,
            read,
            phase: Phase::Offer,
            offers: 0,
            rewinds: 0,
            queue: VecDeque::new(),
            flying: BTreeMap::new(),
            outcome: None,
            round: 0,
        }
    }

    /// The round that asks belong to now. An answer counts only in the round of its ask: the courier drops the others.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// How it ended, once it has: the receiver holds the checkpoint durably, or never will by this push.
    pub fn outcome(&self) -> Option<&Result<(), PushError>> {
        self.outcome.as_ref()
    }

    /// The next request; `None` while answers must come first.
    pub fn next_ask(&mut self) -> Option<Ask> {
        if self.outcome.is_some() {
            return None;
        }
        match self.phase {
            Phase::Offer => {
                self.phase = Phase::Offering;
                self.offers += 1;
                Some(Ask {
                    request: Request::Offer { name: self.name },
                    body: Body::Manifest,
                })
            }
            Phase::Sending if self.queue.is_empty() && self.flying.is_empty() => {
                self.phase = Phase::Committing;
                let request = Request::Commit {
                    name: self.name,
                    manifest: self.read.digest,
                };
                Some(Ask {
                    request,
                    body: Body::Empty,
                })
            }
            Phase::Sending => self.next_piece(),
            Phase::Offering | Phase::Committing => None,
        }
    }

    fn next_piece(&mut self) -> Option<Ask> {
        if self.flying.len() >= FILES_IN_FLIGHT {
            return None;
        }
        let Need { file, offset } = self.queue.pop_front()?;
        let left = self.bytes_of(file)?.saturating_sub(offset);
        let bytes = u32::try_from(left).unwrap_or(u32::MAX).min(PIECE_BYTES);
        self.flying.insert(file, (offset, bytes));
        let request = Request::Piece {
            name: self.name,
            file,
            offset,
        };
        Some(Ask {
            request,
            body: Body::Part { file, offset, bytes },
        })
    }

    /// Takes in an answer to one of the asks of this round.
    pub fn reply(&mut self, reply: &Reply) {
        if self.outcome.is_some() {
            return;
        }
        let taken = match reply {
            Reply::Stale { shown } => Err(PushError::Stale { shown: *shown }),
            Reply::Held if matches!(self.phase, Phase::Offering | Phase::Committing) => {
                self.outcome = Some(Ok(()));
                Ok(())
            }
            Reply::Needed { files } if self.phase == Phase::Offering => self.begin(files),
            Reply::Took { file, offset } => self.took(*file, *offset),
            Reply::At { file, offset } => self.rewind(*file, *offset),
            Reply::Corrupt { .. } if self.phase == Phase::Committing => self.offer_again(),
            Reply::NotOffered => self.offer_again(),
            _ => Err(PushError::Nonsense),
        };
        if let Err(error) = taken {
            self.outcome = Some(Err(error));
        }
    }

    /// An answer is lost: what became of the request is unknown, and the receiver is asked again where it stands.
    pub fn lost(&mut self) {
        if self.outcome.is_none() {
            // A lost connection costs nobody an offer; the courier decides how long it goes on.
            self.offers = self.offers.saturating_sub(1);
            self.restart();
        }
    }

    fn begin(&mut self, needs: &[Need]) -> Result<(), PushError> {
        for need in needs {
            let bytes = self.bytes_of(need.file).ok_or(PushError::Nonsense)?;
            if need.offset >= bytes || self.queue.iter().any(|before| before.file == need.file) {
                return Err(PushError::Nonsense);
            }
            self.queue.push_back(*need);
        }
        self.phase = Phase::Sending;
        Ok(())
    }

    fn took(&mut self, file: u32, offset: u64) -> Result<(), PushError> {
        // An answer to a piece from before a new offer says nothing about this one.
        let Some((from, bytes)) = self.flying.remove(&file) else {
            return Ok(());
        };
        if offset != from + u64::from(bytes) {
            return Err(PushError::Nonsense);
        }
        self.rewinds = 0;
        if Some(offset) < self.bytes_of(file) {
            // To the front: a file that has begun is finished before another is opened.
            self.queue.push_front(Need { file, offset });
        }
        Ok(())
    }

    fn rewind(&mut self, file: u32, offset: u64) -> Result<(), PushError> {
        if self.flying.remove(&file).is_none() {
            return Err(PushError::Nonsense);
        }
        self.rewinds += 1;
        let bytes = self.bytes_of(file).ok_or(PushError::Nonsense)?;
        match offset.cmp(&bytes) {
            _ if self.rewinds > REWINDS_MAX => Err(PushError::NoProgress),
            std::cmp::Ordering::Greater => self.offer_again(),
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Less => {
                self.queue.push_front(Need { file, offset });
                Ok(())
            }
        }
    }

    fn offer_again(&mut self) -> Result<(), PushError> {
        if self.offers >= OFFERS_MAX {
            return Err(PushError::NoProgress);
        }
        self.restart();
        Ok(())
    }

    fn restart(&mut self) {
        self.phase = Phase::Offer;
        self.round += 1;
        self.queue.clear();
        self.flying.clear();
    }

    fn bytes_of(&self, file: u32) -> Option<u64> {
        self.read.manifest.files.get(file as usize).map(|file| file.bytes)
    }
}

#[cfg(test)]
#[path = "push_tests.rs"]
mod tests;
