//! Rounds of confirmation that callers share: one question to the quorum answers everybody who came before it was asked.
//!
//! Owns the round under way and the one that forms behind it. Fresh reads and the node lease come through here, on the leader. The one
//! rule: a caller is answered only by a round that began after it came; a round that hangs holds the next one back for a moment, not
//! until it ends.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use openraft::AsyncRuntime;

use super::ReadError;
use super::leadership::Confirmed;

/// How long a round that does not end holds the next one back.
const HOLD: Duration = Duration::from_millis(20);

type Ended = Result<Confirmed, ReadError>;

#[derive(Clone)]
struct Round {
    ended: Shared<BoxFuture<'static, Ended>>,
    begun: Arc<AtomicBool>,
}

/// The newest round: it forms, is under way, or has ended.
#[derive(Default)]
pub(super) struct Rounds {
    newest: Mutex<Option<Round>>,
}

impl Rounds {
    /// Joins the round that forms, or begins to form one, and waits for its end. Whoever still waits drives it on.
    pub(super) fn join<RT, F>(&self, ask: impl FnOnce() -> F + Send + 'static) -> Shared<BoxFuture<'static, Ended>>
    where
        RT: AsyncRuntime,
        F: Future<Output = Ended> + Send + 'static,
    {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let forming = newest.as_ref().filter(|round| !round.begun.load(Ordering::SeqCst));
        let round = match forming {
            Some(round) => round.clone(),
            None => {
                let before = newest.take().map(|round| round.ended);
                let begun = Arc::new(AtomicBool::new(false));
                let begins = begun.clone();
                let ended = async move {
                    if let Some(before) = before {
                        RT::select2(before, RT::sleep(HOLD)).await;
                    }
                    begins.store(true, Ordering::SeqCst);
                    ask().await
                };
                let ended = ended.boxed().shared();
                newest.insert(Round { ended, begun }).clone()
            }
        };
        round.ended
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::AtomicU64;

    use futures_util::future::join_all;
    use tokio::sync::oneshot;

    use super::*;
    use crate::consensus::leadership::Leadership;

    type Rt = openraft_rt_tokio::TokioRuntime;

    fn confirmed(index: u64) -> Ended {
        Ok(Confirmed {
            index,
            leadership: Leadership::default(),
        })
    }

    /// A round that says its number, when it is let go.
    fn numbered(asked: &Arc<AtomicU64>) -> impl FnOnce() -> std::future::Ready<Ended> + Send + 'static {
        let asked = asked.clone();
        move || std::future::ready(confirmed(asked.fetch_add(1, Ordering::SeqCst) + 1))
    }

    #[tokio::test]
    async fn callers_share_the_round_that_forms_and_never_one_that_has_begun() {
        let (rounds, asked) = (Rounds::default(), Arc::new(AtomicU64::new(0)));
        let (end, ends) = oneshot::channel();
        let first = rounds.join::<Rt, _>(move || async move {
            ends.await.unwrap();
            confirmed(0)
        });
        let first = tokio::spawn(first);
        tokio::task::yield_now().await;
        let second: Vec<_> = (0..5).map(|_| rounds.join::<Rt, _>(numbered(&asked))).collect();
        end.send(()).unwrap();
        assert_eq!(first.await.unwrap(), confirmed(0));
        assert!(join_all(second).await.into_iter().all(|ended| ended == confirmed(1)));
        assert_eq!(rounds.join::<Rt, _>(numbered(&asked)).await, confirmed(2));
    }

    #[tokio::test]
    async fn a_round_that_hangs_or_whose_callers_left_holds_nobody_up() {
        let (rounds, asked) = (Rounds::default(), Arc::new(AtomicU64::new(0)));
        let hung = tokio::spawn(rounds.join::<Rt, _>(std::future::pending));
        tokio::task::yield_now().await;
        let left = rounds.join::<Rt, _>(numbered(&asked));
        let stays = rounds.join::<Rt, _>(numbered(&asked));
        drop(left);
        assert_eq!(stays.await, confirmed(1));
        hung.abort();
    }
}
