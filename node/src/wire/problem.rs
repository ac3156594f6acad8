//! Errors as RFC 9457 problem documents.

use holdfast_proto::rejection::Rejection;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why a request was not served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `urn:holdfast:problem:` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// The class of the error, the same for each problem of the code.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// What happened here, and what to do next.
    pub detail: String,
    /// Stable code: a rejection's, or one of the interface's own.
    pub code: String,
    /// The request id to retry with, when the outcome is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Log index of the entry that refused the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u64>,
    /// The rejection with its values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub rejection: Option<Rejection>,
}

/// Codes of the interface's own problems; those of rejections are `Rejection::CODES`.
pub mod code {
    /// The request is not what its endpoint takes.
    pub const BAD_REQUEST: &str = "bad-request";
    /// The body is larger than any command may be.
    pub const TOO_LARGE: &str = "too-large";
    /// No token was shown.
    pub const TOKEN_MISSING: &str = "token-missing";
    /// What was shown is not a token.
    pub const TOKEN_MALFORMED: &str = "token-malformed";
    /// The token's role does not allow this.
    pub const NOT_ALLOWED: &str = "not-allowed";
    /// There is no such endpoint.
    pub const NO_SUCH_PATH: &str = "no-such-path";
    /// The endpoint does not take this method.
    pub const METHOD_NOT_ALLOWED: &str = "method-not-allowed";
    /// The node is not being drained.
    pub const NOT_DRAINED: &str = "not-drained";
    /// The command needs rules that are not in force yet: some node runs an older version.
    pub const LEVEL_TOO_LOW: &str = "level-too-low";
    /// The command may or may not have taken effect; retry with the same request id.
    pub const OUTCOME_UNKNOWN: &str = "outcome-unknown";
    /// The read could not be made sure to be fresh.
    pub const NOT_FRESH: &str = "not-fresh";
    /// Too many requests are being served.
    pub const BUSY: &str = "busy";
    /// The request took longer than any may.
    pub const TIMED_OUT: &str = "timed-out";
    /// The events asked for are gone; the answer says where to go on.
    pub const COMPACTED: &str = "compacted";
    /// A snapshot took this node over the events asked for; another may have them, and the answer says where to go on here.
    pub const RESET: &str = "reset";
    /// The position asked for lies behind everything that was ever committed.
    pub const CURSOR_FROM_FUTURE: &str = "cursor-from-future";
    /// The position asked for is another cluster's.
    pub const OTHER_CLUSTER: &str = "other-cluster";
    /// A token was made by an earlier copy of this request, and its secret was lost with that answer.
    pub const SECRET_LOST: &str = "secret-lost";
    /// The work's output is not to be had: its node is gone, or it was never started.
    pub const LOG_ABSENT: &str = "log-absent";
    /// The node that has the answer cannot be reached.
    pub const NODE_UNREACHABLE: &str = "node-unreachable";
    /// This node cannot do this, another can.
    pub const NOT_HERE: &str = "not-here";
    /// The node failed.
    pub const INTERNAL: &str = "internal";
}
