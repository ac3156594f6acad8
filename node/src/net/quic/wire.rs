//! Frames on QUIC streams.
//!
//! Owns the bytes: a stream begins with one byte that says what it is (one call, or a channel); each frame is a big-endian length of
//! four bytes and that many bytes; an answer's frame is preceded by one byte that says whether it is an answer or a refusal. Called by
//! the lane and the serving side. The one rule: a length over the class's limit ends the stream before memory is taken for it.

use bytes::{Bytes, BytesMut};
use futures_util::future::{BoxFuture, FutureExt};
use holdfast_proto::id::NodeId;
use quinn::{RecvStream, SendStream, VarInt};

use crate::net::{Class, FrameSink, FrameSource, NetError, Refusal};

/// First byte of a stream that carries one call.
pub(super) const CALL: u8 = 0;
/// First byte of a stream that carries a channel.
pub(super) const CHANNEL: u8 = 1;
/// First byte of an answer.
const ANSWERED: u8 = 0;
/// First byte of a refusal.
const REFUSED: u8 = 1;
/// Stands for a client in the errors of its channels, which nobody is told.
pub(super) const CLIENT: NodeId = NodeId(0);
/// Application code of an abrupt end.
const ABANDONED: VarInt = VarInt::from_u32(1);

/// Writes one frame.
pub(super) async fn write_frame(
    send: &mut SendStream,
    peer: NodeId,
    class: Class,
    frame: Bytes,
) -> Result<(), NetError> {
    let limit = class.frame_bytes_max();
    let too_large = NetError::TooLarge {
        bytes: frame.len() as u64,
        limit,
    };
    let length = u32::try_from(frame.len()).map_err(|_| too_large.clone())?;
    if frame.len() > limit {
        return Err(too_large);
    }
    let head = Bytes::copy_from_slice(&length.to_be_bytes());
    send.write_all_chunks(&mut [head, frame])
        .await
        .map_err(|error| lost(peer, &error))
}

/// Reads one frame; `None` when the stream ended before its first byte.
pub(super) async fn read_frame(recv: &mut RecvStream, peer: NodeId, class: Class) -> Result<Option<Bytes>, NetError> {
    let mut head = [0; 4];
    let mut filled = 0;
    while filled < head.len() {
        match recv
            .read(&mut head[filled..])
            .await
            .map_err(|error| lost(peer, &error))?
        {
            Some(count) => filled += count,
            None if filled == 0 => return Ok(None),
            None => return Err(cut_off(peer)),
        }
    }
    let length = u32::from_be_bytes(head) as usize;
    let limit = class.frame_bytes_max();
    if length > limit {
        return Err(NetError::TooLarge {
            bytes: length as u64,
            limit,
        });
    }
    read_body(recv, peer, length).await.map(Some)
}

/// Memory grows with what has really arrived, so an announced length alone costs nothing.
async fn read_body(recv: &mut RecvStream, peer: NodeId, length: usize) -> Result<Bytes, NetError> {
    let mut body = BytesMut::new();
    while body.len() < length {
        let chunk = recv
            .read_chunk(length - body.len(), true)
            .await
            .map_err(|error| lost(peer, &error))?;
        let Some(chunk) = chunk else { return Err(cut_off(peer)) };
        if body.is_empty() && chunk.bytes.len() == length {
            return Ok(chunk.bytes);
        }
        body.extend_from_slice(&chunk.bytes);
    }
    Ok(body.freeze())
}

/// Takes the end of a stream that carries one frame, if it has come with the frame. A stream that is let go before its end asks the
/// peer to stop: one more packet and its acknowledgement for each call, and each wakes a sleeping node.
pub(super) fn take_end(recv: &mut RecvStream) {
    let _ = recv.read_chunk(1, true).now_or_never();
}

/// Writes an answer or a refusal, and ends the stream.
pub(super) async fn write_answer(
    send: &mut SendStream,
    peer: NodeId,
    class: Class,
    answer: Result<Bytes, Refusal>,
) -> Result<(), NetError> {
    let (mark, frame) = match answer {
        Ok(frame) => (ANSWERED, frame),
        Err(Refusal(text)) => (REFUSED, Bytes::from(text)),
    };
    send.write_all(&[mark]).await.map_err(|error| lost(peer, &error))?;
    write_frame(send, peer, class, frame).await?;
    send.finish().map_err(|error| lost(peer, &error))
}

/// Reads an answer or a refusal.
pub(super) async fn read_answer(recv: &mut RecvStream, peer: NodeId, class: Class) -> Result<Bytes, NetError> {
    let mut mark = [0];
    recv.read_exact(&mut mark).await.map_err(|error| lost(peer, &error))?;
    let frame = read_frame(recv, peer, class).await?.ok_or_else(|| cut_off(peer))?;
    take_end(recv);
    match mark[0] {
        ANSWERED => Ok(frame),
        _ => Err(NetError::Refused {
            node: peer,
            why: String::from_utf8_lossy(&frame).into_owned(),
        }),
    }
}

/// An error of the stream as one of the transport.
pub(super) fn lost(node: NodeId, error: &dyn std::error::Error) -> NetError {
    NetError::Lost {
        node,
        why: with_causes(error),
    }
}

/// An error's text with those of its causes: quinn's outermost says no more than that the connection is lost.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

fn cut_off(node: NodeId) -> NetError {
    NetError::Lost {
        node,
        why: "the stream ended in the middle of a frame".into(),
    }
}

/// The sending half of a channel on a QUIC stream.
pub(super) struct StreamSink {
    pub(super) send: SendStream,
    pub(super) peer: NodeId,
    pub(super) class: Class,
    /// Whether the end has been said; a sink that is dropped before is abandoned.
    pub(super) finished: bool,
}

impl FrameSink for StreamSink {
    fn send(&mut self, frame: Bytes) -> BoxFuture<'_, Result<(), NetError>> {
        Box::pin(write_frame(&mut self.send, self.peer, self.class, frame))
    }

    fn finish(&mut self) -> BoxFuture<'_, Result<(), NetError>> {
        self.finished = true;
        let result = self.send.finish().map_err(|error| lost(self.peer, &error));
        Box::pin(std::future::ready(result))
    }
}

impl Drop for StreamSink {
    fn drop(&mut self) {
        // Without this quinn would finish the stream, and the other side would take an abrupt end for an orderly one.
        if !self.finished {
            let _ = self.send.reset(ABANDONED);
        }
    }
}

/// The receiving half of a channel on a QUIC stream.
pub(super) struct StreamSource {
    pub(super) recv: RecvStream,
    pub(super) peer: NodeId,
    pub(super) class: Class,
}

impl FrameSource for StreamSource {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, NetError>> {
        Box::pin(read_frame(&mut self.recv, self.peer, self.class))
    }
}
