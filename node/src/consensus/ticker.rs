//! When this replica last knew of a living leader, and openraft's ticker, which sleeps while it does.
//!
//! Owns the switch of openraft's ticker. The answering side of the Raft class and the rounds of confirmation note the signs;
//! [`super::start`] starts [`keep`]. openraft would wake 41 times a second to look whether an election or a heartbeat is due; on an idle node that is
//! most of what it does. The one rule: only what proves a living leadership is a sign (a leader's message that openraft accepted, a
//! quorum that confirmed this leader), so the ticker is awake, at the latest, as soon as openraft may begin to think of an election.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_storage::types::Types;
use openraft::storage::RaftStateMachine;
use openraft::{AsyncRuntime, Raft};
use openraft_rt::Instant;
use openraft_rt::watch::WatchReceiver;

/// Signs of a living leadership; the last one is remembered.
pub struct Signs<RT: AsyncRuntime> {
    last: Mutex<Option<RT::Instant>>,
}

impl<RT: AsyncRuntime> Default for Signs<RT> {
    fn default() -> Self {
        Self { last: Mutex::new(None) }
    }
}

impl<RT: AsyncRuntime> Signs<RT> {
    /// Notes a sign.
    pub fn note(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(RT::Instant::now());
    }

    /// How long there was none.
    fn silence(&self) -> Duration {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.map_or(Duration::MAX, |last| last.elapsed())
    }
}

/// Lets openraft's ticker sleep while there are signs, until openraft stops. `election_ms` is openraft's longest random election time:
/// an election begins after that and a random time more, so a ticker that is woken then is early enough. A leader whose rounds stay
/// away sends openraft's own heartbeats from then on, before its followers stand for election.
pub(super) async fn keep<RT, SM>(raft: Raft<Types<RT>, SM>, signs: Arc<Signs<RT>>, election_ms: u64)
where
    RT: AsyncRuntime,
    SM: RaftStateMachine<Types<RT>>,
{
    let patience = Duration::from_millis(election_ms);
    let mut ticks = true;
    while raft.metrics().borrow_watched().running_state.is_ok() {
        let left = patience.saturating_sub(signs.silence());
        let needed = left.is_zero();
        if needed != ticks {
            raft.runtime_config().tick(needed);
            ticks = needed;
        }
        RT::sleep(if needed { patience } else { left }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rt = openraft_rt_tokio::TokioRuntime;

    #[test]
    fn without_a_sign_the_silence_has_no_end() {
        let signs = Signs::<Rt>::default();
        assert_eq!(signs.silence(), Duration::MAX);
        signs.note();
        assert!(signs.silence() < Duration::from_secs(3_600));
    }
}
