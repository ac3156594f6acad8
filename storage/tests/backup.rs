//! Backups: whole or refused, whatever happens to the file.

#![allow(clippy::unwrap_used)]

#[path = "support/commands.rs"]
#[allow(dead_code, reason = "each test file uses its own part")]
mod commands;

use holdfast_proto::id::Era;
use holdfast_storage::backup::{self, BackupError};
use holdfast_storage::machine::{Machine, State, invariant};

fn state() -> State {
    let mut machine = Machine::default();
    machine.apply(1, &commands::init());
    for index in 2..40 {
        machine.apply(index, &commands::note(&format!("note {index}"), 1000 + index));
    }
    machine.state().clone()
}

#[test]
fn a_backup_reads_back_as_the_state_of_one_entry() {
    let state = state();
    let bytes = backup::encode(&state, "test").unwrap();
    let read = backup::read(&bytes).unwrap();
    assert_eq!((read.header.index, read.header.state_hash), (39, state.hash()));
    assert_eq!(read.state, state);
}

#[test]
fn a_backup_that_is_cut_anywhere_or_has_a_flipped_bit_is_refused() {
    let bytes = backup::encode(&state(), "test").unwrap();
    for length in 0..bytes.len() {
        assert!(backup::read(&bytes[..length]).is_err(), "cut to {length}");
    }
    let longer = [&bytes[..], b"x"].concat();
    assert!(matches!(backup::read(&longer), Err(BackupError::Incomplete { .. })));
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(backup::read(&changed).is_err(), "bit {bit}");
    }
}

#[test]
fn a_state_without_a_cluster_is_not_backed_up() {
    assert!(matches!(
        backup::encode(&State::default(), "test"),
        Err(BackupError::NoCluster)
    ));
}

#[test]
fn a_restored_cluster_begins_in_a_higher_era_with_its_people_and_without_its_machines() {
    let before = state();
    let restored = before.restored();
    assert!(invariant::check(&restored).is_empty());
    assert!(restored.nodes.is_empty() && restored.cluster.voters.is_empty());
    assert_eq!(restored.access_tokens.len(), before.access_tokens.len());
    assert_eq!(restored.cluster.era, Era(before.cluster.era.0 + 1));
    let mut machine = Machine::new(restored);
    let refused = machine.apply(40, &commands::note("too early", 2000));
    assert!(refused.outcome.is_err());
    let mut init = commands::init();
    if let holdfast_proto::command::Command::InitCluster(init) = &mut init.command {
        init.era = Era(before.cluster.era.0 + 1);
    }
    assert!(machine.apply(41, &init).outcome.is_ok());
    assert_eq!(machine.state().nodes.len(), 1);
    // A second time only in a higher era, which a voter begins when it goes on alone.
    assert!(machine.apply(42, &init).outcome.is_err());
    if let holdfast_proto::command::Command::InitCluster(init) = &mut init.command {
        init.era = Era(9);
    }
    assert!(machine.apply(43, &init).outcome.is_ok());
    assert_eq!(machine.state().cluster.era, Era(9));
}
