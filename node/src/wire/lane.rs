//! What is said on the client lane: rkyv frames over one ordered channel, ALPN `holdfast/client/1`.
//!
//! Owns the frames that [`crate::api::lane`] serves and [`crate::client::lane`] speaks. A channel begins with one [`Hello`] and one
//! [`Answered`]; then [`Asked`] frames go one way and [`Told`] frames the other, each with as many commands or outcomes as were ready
//! together. Outcomes come in any order and name their command by the client's number. The one rule: kinds are written down here and
//! never reused; a new form of a frame gets a new kind or a new protocol name.

// The archived twins that rkyv derives have no texts of their own.
#![allow(missing_docs)]

use std::fmt;

use holdfast_proto::command::Command;
use holdfast_proto::event::Event;
use holdfast_proto::id::{NodeId, RequestId};
use holdfast_proto::rejection::Rejection;

use super::problem::Problem;

/// The protocol name.
pub const ALPN: &[u8] = b"holdfast/client/1";

/// Kinds of frames.
pub mod kind {
    use holdfast_proto::frame::kind::NODE;

    /// [`super::Hello`].
    pub const HELLO: u16 = NODE + 0x70;
    /// [`super::Answered`].
    pub const ANSWERED: u16 = NODE + 0x71;
    /// [`super::Asked`].
    pub const ASKED: u16 = NODE + 0x72;
    /// [`super::Told`].
    pub const TOLD: u16 = NODE + 0x73;
}

/// Begins a channel: who asks.
#[derive(Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Hello {
    /// The whole access token.
    pub token: String,
}

impl fmt::Debug for Hello {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Hello")
    }
}

/// Answers the hello.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum Answered {
    /// The token is valid; commands may follow.
    Welcome {
        /// The node that answers.
        node: NodeId,
        /// Where the leader is reached, when that is another node.
        leader: Option<String>,
        /// Where the voters are reached, so that a client outlives the node that it was told of.
        nodes: Vec<String>,
    },
    /// It is not, or the node has no place; the channel ends.
    Refused(Refused),
}

/// Commands that were ready together.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Asked {
    /// The commands, in the order in which they enter the log when nothing goes wrong.
    pub asks: Vec<Ask>,
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Ask {
    /// The client's number for it, unique on the channel.
    pub number: u64,
    /// Names the request; sent again with it, a command is not executed twice.
    pub request: RequestId,
    /// Whether the outcome is to carry the events.
    pub events: bool,
    /// The command.
    pub command: Command,
}

/// Outcomes that were ready together.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Told {
    /// Where the leader is reached, when that is another node: commands go faster there.
    pub leader: Option<String>,
    /// The outcomes.
    pub ends: Vec<End>,
}

/// What became of one command.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct End {
    /// The client's number for it.
    pub number: u64,
    /// The outcome.
    pub outcome: Outcome,
}

/// Applied, refused, or unknown.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum Outcome {
    /// It took effect, and is durable on a quorum.
    Applied {
        /// Log index of its entry; for a repeated request, of the first one.
        index: u64,
        /// What it was decided into, when that was asked for.
        events: Vec<Event>,
    },
    /// It has no effect.
    Refused(Refused),
    /// It may or may not take effect: ask again with the same request id.
    Unknown {
        /// What stood in the way, for a person.
        reason: String,
    },
}

/// The refusal that the HTTP interface would answer with.
#[derive(Debug, Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Refused {
    /// The HTTP status.
    pub status: u16,
    /// Stable code.
    pub code: String,
    /// What happened, and what to do next.
    pub detail: String,
    /// Log index of the entry that refused the command.
    pub index: Option<u64>,
    /// The rejection with its values.
    pub rejection: Option<Rejection>,
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        Self {
            kind: format!("urn:holdfast:problem:{}", refused.code),
            title: refused.code.replace('-', " "),
            status: refused.status,
            detail: refused.detail,
            code: refused.code,
            request: None,
            index: refused.index,
            rejection: refused.rejection,
        }
    }
}

impl From<&Problem> for Refused {
    fn from(problem: &Problem) -> Self {
        Self {
            status: problem.status,
            code: problem.code.clone(),
            detail: problem.detail.clone(),
            index: problem.index,
            rejection: problem.rejection.clone(),
        }
    }
}
