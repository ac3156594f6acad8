//! Signals that end a command of a person: Ctrl-C, an order to end, a terminal that is gone.
//!
//! Listened to from the moment that there is something in the cluster to tell of, and for as long as the command lives,
//! so that none is lost between two waits. The one rule: a signal ends the command and nothing in the cluster.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::error::CliError;

/// What 128 is added to, as shells do.
const SIGNALLED: u8 = 128;

/// The signals.
#[derive(Debug)]
pub struct Interrupts {
    signals: Vec<(u8, Signal)>,
}

impl Interrupts {
    /// Listens from now on; until then, and where a signal cannot be listened to, it ends the process by itself.
    pub fn listen() -> Self {
        let kinds = [
            (1, SignalKind::hangup()),
            (2, SignalKind::interrupt()),
            (15, SignalKind::terminate()),
        ];
        let listened = kinds
            .into_iter()
            .filter_map(|(number, kind)| Some((number, signal(kind).ok()?)));
        Self {
            signals: listened.collect(),
        }
    }

    /// Waits for the next one; gives the exit code that it stands for.
    pub async fn next(&mut self) -> u8 {
        let waits = self
            .signals
            .iter_mut()
            .map(|(number, signal)| Box::pin(async move { signal.recv().await.map_or(0, |()| *number) }));
        let waits: Vec<_> = waits.collect();
        if waits.is_empty() {
            std::future::pending::<()>().await;
        }
        SIGNALLED + futures_util::future::select_all(waits).await.0
    }
}

/// The failure of a command that a signal ended.
pub fn interrupted(exit_code: u8, told: impl Into<String>) -> CliError {
    CliError::Interrupted {
        told: told.into(),
        exit_code,
    }
}
