//! Decides commands: whether they are allowed, and which rule speaks for them. The rules themselves are below, by noun.
//!
//! Every arm ends in events or in a rejection; an arm without events says that the command's content is so already.
//! Rules read the state and nothing else: no clock, no randomness, so every replica decides alike.

mod access;
mod attempt;
mod cluster;
mod device;
mod drain;
mod lease;
mod node;
mod placement;
mod preempt;
mod settle;
mod shape;
mod subscription;
mod tenant;

use holdfast_proto::command::{Command, Envelope};
use holdfast_proto::rejection::Rejection;

use super::draft::Draft;

/// Decides one command.
pub(super) fn decide(draft: &mut Draft, envelope: &Envelope) -> Result<(), Rejection> {
    access::check(draft, envelope)?;
    let who = &envelope.principal;
    match &envelope.command {
        Command::InitCluster(_)
        | Command::RecordVoters { .. }
        | Command::RecordStateHash { .. }
        | Command::RaiseMachineLevel { .. }
        | Command::SetTime { .. }
        | Command::Annotate { .. } => cluster::decide(draft, &envelope.command),
        Command::AdmitNode { .. }
        | Command::RegisterNode { .. }
        | Command::MarkNodeUnreachable { .. }
        | Command::MarkNodeLost { .. }
        | Command::ReturnNode { .. }
        | Command::CordonNode { .. }
        | Command::RemoveNode { .. }
        | Command::QuietNode { .. }
        | Command::ReportClockSuspect { .. } => node::decide(draft, &envelope.command),
        Command::DrainNode { .. } | Command::EvictLease { .. } | Command::FinishDrain { .. } => {
            drain::decide(draft, &envelope.command)
        }
        Command::PreemptLease { lease, epoch, by } => preempt::preempt(draft, *lease, *epoch, *by),
        Command::ReportInventory { .. }
        | Command::ReportHealth { .. }
        | Command::ReportRollup { .. }
        | Command::GradeDevice { .. } => device::decide(draft, &envelope.command),
        Command::CreateJoinToken { .. }
        | Command::CreateAccessToken(_)
        | Command::RevokeToken { .. }
        | Command::SetTenant { .. }
        | Command::SetLimits { .. }
        | Command::SetTariff(_) => tenant::decide(draft, &envelope.command),
        Command::CreateLease(create) => lease::create(draft, envelope.project.as_ref(), create),
        Command::CreateLeaseWith(create) => lease::create_with(draft, envelope.project.as_ref(), create),
        Command::CreateSubscription(_) | Command::AcknowledgeEvents { .. } | Command::RemoveSubscription { .. } => {
            subscription::decide(draft, &envelope.command)
        }
        Command::ReleaseLease { .. }
        | Command::RenewLease { .. }
        | Command::EndLease { .. }
        | Command::CommitCheckpoint { .. } => lease::decide(draft, who, &envelope.command),
        Command::CommitPlacement {
            lease,
            epoch,
            allocations,
        } => placement::commit(draft, *lease, *epoch, allocations),
        Command::DeferPlacement { lease, reason } => placement::defer(draft, *lease, reason),
        Command::ReportPrepared { .. } | Command::ReportStarted { .. } | Command::ReportExited { .. } => {
            attempt::decide(draft, &envelope.command)
        }
    }
}
