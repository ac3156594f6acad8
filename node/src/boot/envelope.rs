//! A duty of this node as a command.

use holdfast_proto::command::{Command, Envelope};
use holdfast_proto::id::NodeId;
use holdfast_proto::tenant::Principal;
use holdfast_proto::time::Timestamp;

/// Wraps `command`: the leader stamps it, and its content makes it safe to repeat.
pub(super) fn by_node(me: NodeId, command: Command) -> Envelope {
    Envelope {
        stamp: Timestamp(0),
        principal: Principal::Node(me),
        project: None,
        origin: me,
        request: None,
        command,
    }
}
