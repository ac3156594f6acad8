//! Events and notes as they come over one channel of the client lane.
//!
//! Read by [`super::EventStream`] and by the benches. A task of its own reads the channel, because half a frame must not be lost when
//! whoever waits for it stops waiting. The one rule: it reads ahead by a few frames and no more; the rest waits at the node.

use std::pin::Pin;

use bytes::Bytes;
use holdfast_proto::event::EventRecord;
use holdfast_proto::frame;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep};

use crate::client::stream::{Broken, SILENCE_MAX};
use crate::net::Channel;
use crate::wire::deliver::{Noted, kind, take};

/// Frames that are read ahead; each has some tens of kilobytes while events are fresh.
const AHEAD: usize = 2;

/// What a node says on a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// An event.
    Event(EventRecord),
    /// A note.
    Note(Noted),
}

/// Frames from one channel.
pub(crate) struct Frames {
    /// The node that serves.
    pub(crate) address: String,
    came: Receiver<Bytes>,
    reading: JoinHandle<()>,
    /// What is left of the frame that is being given out.
    rest: Bytes,
    /// Over when nothing has come for too long, however often whoever waits begins to wait anew.
    silence: Pin<Box<Sleep>>,
}

impl Frames {
    /// Reads a channel whose subscription was taken.
    pub(super) fn new(address: String, open: Channel) -> Self {
        let (sender, came) = channel(AHEAD);
        let reading = tokio::spawn(async move {
            // A half that is dropped ends the channel, so both are kept until it is over.
            let Channel {
                sink: _sink,
                mut source,
            } = open;
            while let Ok(Some(bytes)) = source.next().await {
                if sender.send(bytes).await.is_err() {
                    return;
                }
            }
        });
        Self {
            address,
            came,
            reading,
            rest: Bytes::new(),
            silence: Box::pin(sleep(SILENCE_MAX)),
        }
    }

    /// The next part; `Ok(None)` when no more comes. A call that is dropped loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<Part>, Broken> {
        loop {
            if let Some(record) = take(&mut self.rest).map_err(|_| Broken::Cut)? {
                return Ok(Some(Part::Event(record)));
            }
            let came = tokio::select! {
                biased;
                came = self.came.recv() => came,
                () = &mut self.silence => return Err(Broken::Silent),
            };
            self.silence = Box::pin(sleep(SILENCE_MAX));
            let Some(bytes) = came else { return Ok(None) };
            match frame::open(&bytes).map_err(|_| Broken::Cut)? {
                (kind::DELIVERED, payload) => self.rest = bytes.slice_ref(payload),
                (kind::NOTED, payload) => {
                    let noted = frame::decode_payload(payload).map_err(|_| Broken::Cut)?;
                    return Ok(Some(Part::Note(noted)));
                }
                _ => return Err(Broken::Cut),
            }
        }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.reading.abort();
    }
}
