//! Snapshots on their way to a follower, in pieces, over their own class.
//!
//! Owns the exchange: offer, where to go on from, pieces, and what came of it. The leader sends, [`super::serve`] hands a follower's
//! channel to [`receive`]. The one rule: nothing is installed unless all of it hashes to what was offered; an interrupted transfer goes on
//! where it stopped. Every wait has a bound, so a slow peer costs one channel and not the leader.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_proto::frame;
use holdfast_proto::id::NodeId;
use holdfast_storage::types::{LeaderId, Peer, Types, Vote};
use openraft::AsyncRuntime;
use openraft::errors::{NetworkError, StreamingError, Unreachable};
use openraft::raft::SnapshotResponse;

use super::super::wire::{self, SnapshotChunk, SnapshotOffer, SnapshotTaken, SnapshotWanted, WireError, kind};
use super::rpc_error;
use crate::net::{Channel, Class, NetError, Transport};

/// Bytes per piece.
const PIECE_BYTES: usize = 1024 * 1024;
/// How long one piece may take, or the first answer.
const PIECE_WAIT: Duration = Duration::from_secs(10);
/// How long checking and installing may take, once all of it has arrived.
const INSTALL_WAIT: Duration = Duration::from_secs(600);

/// A snapshot with what it covers.
pub(super) type Snapshot<D> = openraft::Snapshot<LeaderId, u64, Peer, D>;

/// What a snapshot is as a string of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Described {
    /// Its length.
    pub bytes: u64,
    /// BLAKE3 of all of it.
    pub digest: [u8; 32],
}

/// How snapshots are read and written, whatever they are made of. May block; called off the async threads.
pub trait SnapshotFiles<D>: Send + Sync + 'static {
    /// Length and digest of a snapshot of ours.
    fn describe(&self, snapshot: &D) -> io::Result<Described>;

    /// Up to `most` bytes from `offset`.
    fn read(&self, snapshot: &D, offset: u64, most: usize) -> io::Result<Bytes>;

    /// Begins to take a snapshot in, or goes on with one: gives how much of it is there already.
    fn begin(&self, described: &Described) -> io::Result<u64>;

    /// Writes a piece at `offset`, which is where the one before ended.
    fn write(&self, described: &Described, offset: u64, piece: &Bytes) -> io::Result<()>;

    /// Checks all of it and makes it durable; `None` when it is not what was offered, and then it is thrown away.
    fn finish(&self, described: &Described) -> io::Result<Option<D>>;
}

/// Sends `snapshot` to `to`, and waits until it is installed there.
pub(super) async fn send<RT, D>(
    to: NodeId,
    transport: &dyn Transport,
    files: Arc<dyn SnapshotFiles<D>>,
    vote: Vote,
    snapshot: Snapshot<D>,
) -> Result<SnapshotResponse<Types<RT>>, StreamingError<Types<RT>>>
where
    RT: AsyncRuntime,
    D: Clone + Send + Sync + 'static,
{
    let unsent = |error: &NetError| StreamingError::from(rpc_error::<RT>(error));
    let local = |error: io::Error| StreamingError::Unreachable(Unreachable::new(&error));
    let data = snapshot.snapshot;
    let (files_there, data_there) = (files.clone(), data.clone());
    let described = blocking::<RT, _>(move || files_there.describe(&data_there))
        .await
        .map_err(local)?;

    let mut channel = transport
        .open(to, Class::Snapshot)
        .await
        .map_err(|error| unsent(&error))?;
    let offer = wire::snapshot_offer(&vote, &snapshot.meta, described.bytes, described.digest);
    channel
        .sink
        .send(frame::encode(kind::SNAPSHOT_OFFER, &offer))
        .await
        .map_err(|error| unsent(&error))?;
    let wanted = next::<RT>(&mut channel, to, PIECE_WAIT)
        .await
        .map_err(|error| unsent(&error))?;
    let mut offset = match read::<RT, SnapshotWanted>(kind::SNAPSHOT_WANTED, &wanted)? {
        SnapshotWanted::HigherVote(vote) => return Ok(SnapshotResponse::new(vote.into())),
        SnapshotWanted::From(offset) => offset,
    };

    while offset < described.bytes {
        let (files, data) = (files.clone(), data.clone());
        let piece = blocking::<RT, _>(move || files.read(&data, offset, PIECE_BYTES))
            .await
            .map_err(local)?;
        if piece.is_empty() {
            return Err(local(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the snapshot file is shorter than it was",
            )));
        }
        let chunk = SnapshotChunk {
            offset,
            bytes: piece.clone(),
        };
        let sending = channel.sink.send(frame::encode(kind::SNAPSHOT_CHUNK, &chunk));
        match RT::timeout(PIECE_WAIT, sending).await {
            Ok(sent) => sent.map_err(|error| unsent(&error))?,
            Err(_) => return Err(NetworkError::from_string(format!("node {to} takes no more of the snapshot")).into()),
        }
        offset += piece.len() as u64;
    }
    channel.sink.finish().await.map_err(|error| unsent(&error))?;

    let taken = next::<RT>(&mut channel, to, INSTALL_WAIT)
        .await
        .map_err(|error| unsent(&error))?;
    match read::<RT, SnapshotTaken>(kind::SNAPSHOT_TAKEN, &taken)? {
        SnapshotTaken::Installed(vote) => Ok(SnapshotResponse::new(vote.into())),
        SnapshotTaken::Damaged => {
            Err(NetworkError::from_string(format!("the snapshot arrived damaged at node {to}")).into())
        }
    }
}

/// Why a snapshot was not taken in.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    /// The leader broke off.
    #[error("the snapshot transfer ended early")]
    Net(#[from] NetError),
    /// A message was not understood.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The disk failed.
    #[error("cannot store the snapshot")]
    Io(#[from] io::Error),
    /// A piece is not the next one.
    #[error("a piece of the snapshot begins at {got}, and {expected} was expected")]
    OutOfOrder {
        /// Where it begins.
        got: u64,
        /// Where it should.
        expected: u64,
    },
    /// The sender is not the leader that it speaks for.
    #[error("the snapshot is offered for another leader than its sender")]
    Forged,
    /// Consensus has stopped.
    #[error("this replica has stopped")]
    Stopped,
}

/// What the replica does with a snapshot that has arrived.
pub(super) trait Install<D>: Sync {
    /// A vote above the leader's, if this replica knows one.
    fn higher_vote(&self, vote: &Vote) -> Option<Vote>;

    /// Installs it; gives the replica's vote.
    fn install(&self, offer: SnapshotOffer, snapshot: D) -> BoxFuture<'_, Result<Vote, ReceiveError>>;
}

/// Takes one snapshot in from `from`.
pub(super) async fn receive<RT, D>(
    from: NodeId,
    mut channel: Channel,
    files: Arc<dyn SnapshotFiles<D>>,
    replica: &impl Install<D>,
) -> Result<(), ReceiveError>
where
    RT: AsyncRuntime,
    D: Clone + Send + Sync + 'static,
{
    let offer = next::<RT>(&mut channel, from, PIECE_WAIT).await?;
    let offer: SnapshotOffer = frame::decode(kind::SNAPSHOT_OFFER, &offer).map_err(WireError::from)?;
    if offer.vote.node != from.0 {
        return Err(ReceiveError::Forged);
    }
    if let Some(higher) = replica.higher_vote(&offer.vote.into()) {
        let answer = SnapshotWanted::HigherVote((&higher).into());
        channel.sink.send(frame::encode(kind::SNAPSHOT_WANTED, &answer)).await?;
        return Ok(channel.sink.finish().await?);
    }

    let described = Described {
        bytes: offer.bytes,
        digest: offer.digest,
    };
    let begun = files.clone();
    let mut offset = blocking::<RT, _>(move || begun.begin(&described)).await?;
    channel
        .sink
        .send(frame::encode(kind::SNAPSHOT_WANTED, &SnapshotWanted::From(offset)))
        .await?;
    while offset < described.bytes {
        let chunk = next::<RT>(&mut channel, from, PIECE_WAIT).await?;
        let chunk: SnapshotChunk = frame::decode(kind::SNAPSHOT_CHUNK, &chunk).map_err(WireError::from)?;
        let length = chunk.bytes.len() as u64;
        if chunk.offset != offset || length == 0 || length > described.bytes - offset {
            return Err(ReceiveError::OutOfOrder {
                got: chunk.offset,
                expected: offset,
            });
        }
        let files = files.clone();
        blocking::<RT, _>(move || files.write(&described, chunk.offset, &chunk.bytes)).await?;
        offset += length;
    }

    let finished = files.clone();
    let taken = match blocking::<RT, _>(move || finished.finish(&described)).await? {
        None => SnapshotTaken::Damaged,
        Some(snapshot) => SnapshotTaken::Installed((&replica.install(offer, snapshot).await?).into()),
    };
    channel.sink.send(frame::encode(kind::SNAPSHOT_TAKEN, &taken)).await?;
    Ok(channel.sink.finish().await?)
}

async fn next<RT: AsyncRuntime>(channel: &mut Channel, peer: NodeId, wait: Duration) -> Result<Bytes, NetError> {
    let lost = |why: &str| NetError::Lost {
        node: peer,
        why: why.into(),
    };
    match RT::timeout(wait, channel.source.next()).await {
        Ok(Ok(Some(frame))) => Ok(frame),
        Ok(Ok(None)) => Err(lost("it ended the snapshot stream")),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(lost("the snapshot makes no progress")),
    }
}

fn read<RT, T>(kind: u16, bytes: &[u8]) -> Result<T, StreamingError<Types<RT>>>
where
    RT: AsyncRuntime,
    T: rkyv::Archive,
    T::Archived: for<'a> rkyv::bytecheck::CheckBytes<rkyv::api::high::HighValidator<'a, rkyv::rancor::Error>>
        + rkyv::Deserialize<T, rkyv::api::high::HighDeserializer<rkyv::rancor::Error>>,
{
    frame::decode(kind, bytes).map_err(|error| Unreachable::new(&error).into())
}

/// Runs blocking work where it stalls nothing else.
async fn blocking<RT, T>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T>
where
    RT: AsyncRuntime,
    T: Send + 'static,
{
    RT::spawn_blocking(work).await?
}
