//! Decides what concerns the cluster as a whole: its first entry, its voters, its time, its hash, its level.

use holdfast_proto::command::{Command, InitCluster};
use holdfast_proto::event::Event;
use holdfast_proto::id::{Cursor, Digest, NodeId, TokenId};
use holdfast_proto::rejection::Rejection;
use holdfast_proto::tenant::{AccessToken, Quota, Role};

use super::super::draft::Draft;
use super::{node, shape, tenant};

pub(super) fn decide(draft: &mut Draft, command: &Command) -> Result<(), Rejection> {
    match command {
        Command::InitCluster(init) => init_cluster(draft, init),
        Command::RecordVoters { voters } => record_voters(draft, voters),
        Command::RecordStateHash { at, hash } => record_state_hash(draft, *at, *hash),
        Command::RaiseMachineLevel { level } => {
            let present = draft.state().cluster.level;
            if *level != present.saturating_add(1) {
                return Err(Rejection::LevelNotNext { given: *level, present });
            }
            draft.emit(Event::MachineLevelRaised { level: *level });
            Ok(())
        }
        Command::SetTime { time } => {
            let last = draft.at();
            if *time < last {
                return Err(Rejection::TimeBackwards { given: *time, last });
            }
            draft.emit(Event::TimeSet { time: *time });
            Ok(())
        }
        Command::Annotate { subject, text } => {
            shape::name("subject", subject)?;
            shape::text("text", text)?;
            draft.emit_last(Event::Annotated {
                subject: subject.clone(),
                text: text.clone(),
            });
            Ok(())
        }
        _ => unreachable!("decide.rs routes cluster commands only"),
    }
}

/// Makes the cluster: its identity, its first node, that node's vote, the operator's token, the prices. A token that
/// is bound to a tenant brings that tenant with it, so that the first lease needs no further step. In a cluster that is
/// there already it begins a new era and gives the operator a token, and changes nothing else.
fn init_cluster(draft: &mut Draft, init: &InitCluster) -> Result<(), Rejection> {
    if draft.state().cluster.id.is_some() {
        operator_token(&init.operator)?;
        draft.emit(Event::ClusterInitialized {
            cluster: init.cluster,
            era: init.era,
        });
        draft.emit(Event::AccessTokenCreated(init.operator.clone()));
        return Ok(());
    }
    node::check_spec(&init.node)?;
    operator_token(&init.operator)?;
    tenant::check_tariff(&init.tariff)?;
    draft.emit(Event::ClusterInitialized {
        cluster: init.cluster,
        era: init.era,
    });
    draft.emit(Event::NodeJoined {
        spec: init.node.clone(),
        token: None,
    });
    let voters = vec![init.node.node];
    draft.emit(Event::VotersChanged { voters });
    if let Some(tenant) = &init.operator.tenant {
        let quota = Quota { devices_max: u32::MAX };
        draft.emit(Event::TenantSet {
            tenant: tenant.clone(),
            quota,
        });
    }
    draft.emit(Event::AccessTokenCreated(init.operator.clone()));
    draft.emit(Event::TariffSet(init.tariff.clone()));
    Ok(())
}

fn operator_token(token: &AccessToken) -> Result<(), Rejection> {
    shape::text("note", &token.note)?;
    if token.role != Role::Operator || token.token == TokenId(0) {
        return Err(shape::out_of_range(
            "first token",
            token.token,
            "an operator's, with a random id",
        ));
    }
    token.tenant.iter().try_for_each(|tenant| shape::name("tenant", tenant))
}

fn record_voters(draft: &mut Draft, voters: &[NodeId]) -> Result<(), Rejection> {
    let ordered = voters.windows(2).all(|pair| pair[0] < pair[1]);
    if voters.is_empty() || !ordered {
        return Err(shape::out_of_range(
            "voters",
            voters.len(),
            "one or more nodes, in order, each once",
        ));
    }
    for voter in voters {
        draft.node(*voter)?;
    }
    if draft.state().cluster.voters != voters {
        draft.emit(Event::VotersChanged {
            voters: voters.to_vec(),
        });
    }
    Ok(())
}

/// Records a hash. One of the present position is compared at once; of an earlier one, each replica compares its own
/// when it reads the event.
fn record_state_hash(draft: &mut Draft, at: Cursor, hash: Digest) -> Result<(), Rejection> {
    let cluster = &draft.state().cluster;
    if at > cluster.cursor {
        let allowed = format!("at most {}", cluster.cursor);
        return Err(shape::out_of_range("position of the hash", at, &allowed));
    }
    if let Some(last) = cluster.hashed.filter(|last| at < last.at) {
        let allowed = format!("at least {}, which was the last", last.at);
        return Err(shape::out_of_range("position of the hash", at, &allowed));
    }
    let recorded = cluster.hashed.filter(|recorded| recorded.at == at);
    let differs = match recorded {
        Some(recorded) => recorded.hash != hash,
        None => at == cluster.cursor && draft.state().hash() != hash,
    };
    if differs {
        return Err(Rejection::StateDiverged { index: at.index });
    }
    if recorded.is_none() {
        draft.emit(Event::StateHashRecorded { at, hash });
    }
    Ok(())
}
