//! Fetching a checkpoint from a holder into the own store, before the work that resumes from it starts.
//!
//! The courier calls `fetch` for one holder after the other. What has arrived stays in the store's incoming folder, so
//! the next holder, or the next try, sends only the rest. The rule kept here: the manifest is judged by the digest
//! that the log gave, and everything else by the manifest.

use std::collections::BTreeSet;

use futures_util::{StreamExt as _, TryStreamExt as _};
use holdfast_proto::id::{Digest, NodeId};

use super::{ANSWER_WAIT, CarryError, Courier, LOSS_WAIT, blocking, losses_max};
use crate::transfer::manifest::{Manifest, digest_of};
use crate::transfer::push::FILES_IN_FLIGHT;
use crate::transfer::store::{Committed, Offered, Placed};
use crate::transfer::wire::{CheckpointName, Need, PIECE_BYTES, Reply, Request};

/// Times that everything is checked before the holder is given up: it sent damaged bytes each time.
const ROUNDS_MAX: u32 = 3;

impl Courier {
    /// Brings the checkpoint with this manifest from a holder into the own store.
    pub(super) async fn fetch(&self, from: NodeId, name: CheckpointName, digest: Digest) -> Result<(), CarryError> {
        let request = Request::Manifest {
            lease: name.lease,
            manifest: digest,
        };
        let bytes = match self.ask_again(from, &request, false).await? {
            (Reply::Manifest, bytes) if digest_of(&bytes) == digest => bytes,
            (Reply::NotHeld, _) => return Err(CarryError::NotHeld(from)),
            _ => {
                return Err(CarryError::Answer {
                    node: from,
                    source: None,
                });
            }
        };
        let manifest = Manifest::parse(&bytes).map_err(crate::transfer::store::StoreError::from)?;
        for _ in 0..ROUNDS_MAX {
            let (store, offer) = (self.store.clone(), bytes.clone());
            let Offered::Needed(needs) = blocking(move || store.offer(name, &offer)).await? else {
                return Ok(());
            };
            let files: BTreeSet<u32> = needs.iter().map(|need| need.file).collect();
            assert!(files.len() == needs.len(), "the store asks for each file once");
            futures_util::stream::iter(needs)
                .map(|need| self.fetch_file(from, name, digest, &manifest, need))
                .buffer_unordered(FILES_IN_FLIGHT)
                .try_collect::<()>()
                .await?;
            let store = self.store.clone();
            if blocking(move || store.commit(name, digest)).await? == Committed::Held {
                return Ok(());
            }
        }
        Err(CarryError::Answer {
            node: from,
            source: None,
        })
    }

    async fn fetch_file(
        &self,
        from: NodeId,
        name: CheckpointName,
        digest: Digest,
        manifest: &Manifest,
        need: Need,
    ) -> Result<(), CarryError> {
        let file = need.file;
        let nonsense = || CarryError::Answer {
            node: from,
            source: None,
        };
        let bytes = manifest
            .files
            .get(file as usize)
            .map(|file| file.bytes)
            .ok_or_else(nonsense)?;
        let mut offset = need.offset;
        while offset < bytes {
            let request = Request::Read {
                lease: name.lease,
                manifest: digest,
                file,
                offset,
                bytes: PIECE_BYTES,
            };
            let part = match self.ask_again(from, &request, true).await? {
                (
                    Reply::Bytes {
                        file: echoed,
                        offset: at,
                    },
                    part,
                ) if (echoed, at) == (file, offset) => part,
                (Reply::NotHeld, _) => return Err(CarryError::NotHeld(from)),
                _ => return Err(nonsense()),
            };
            if part.is_empty() {
                return Err(nonsense());
            }
            let store = self.store.clone();
            match blocking(move || store.place(name, file, offset, &part)).await? {
                Placed::Took(after) => offset = after,
                Placed::At(end) if end <= bytes => offset = end,
                Placed::At(_) => return Err(nonsense()),
            }
        }
        Ok(())
    }

    /// Asks, and asks again over a new connection when one was lost: reading changes nothing.
    async fn ask_again(
        &self,
        from: NodeId,
        request: &Request,
        heard: bool,
    ) -> Result<(Reply, bytes::Bytes), CarryError> {
        let mut losses = 0;
        loop {
            match self.ask(from, request, &[], ANSWER_WAIT).await {
                Err(error) if losses < losses_max(&error, heard) => {
                    losses += 1;
                    tokio::time::sleep(LOSS_WAIT * losses).await;
                }
                answer => return answer,
            }
        }
    }
}
