//! `holdfast demo`: the main job in under 90 seconds, on one machine, with nothing left behind.
//!
//! Three real node processes in three zones lease simulated GPUs through the commands that everybody uses, run a real
//! training program, lose the node that runs it to `kill -9`, and let it finish elsewhere from its last checkpoint.
//! The rule: nothing here reaches into a node. What is shown was read through the API, and every claim is checked.

mod story;
mod trace;

use std::future::Future;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

pub(crate) use self::story::ready;
use crate::local::{LocalCluster, LocalError, LocalSpec};

/// Flags of `holdfast demo`.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoFlags {
    /// Lease the arrivals of a real trace instead: a pod list in the openb format (CSV with creation and deletion times).
    #[arg(long, value_name = "PODS.csv")]
    pub trace: Option<PathBuf>,
    /// How many arrivals of the trace to lease.
    #[arg(long, default_value_t = 300, requires = "trace", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub count: u64,
    /// How much faster than in the trace time passes; by default so that the arrivals take about 30 seconds.
    #[arg(long, requires = "trace", value_parser = clap::value_parser!(u64).range(1..))]
    pub speed_up: Option<u64>,
}

/// Why the demo did not show what it promises.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The local cluster failed.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// The trace cannot be read.
    #[error("cannot read the trace {path}: {why}")]
    Trace {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// Something that was waited for did not happen.
    #[error("{what} did not happen within {within:?}")]
    Late {
        /// What was waited for.
        what: String,
        /// How long.
        within: Duration,
    },
    /// A claim does not hold.
    #[error("{0}")]
    Claim(String),
}

/// Runs the demo and returns its exit code: 0 when every claim held, 130 when it was interrupted.
pub async fn run(flags: DemoFlags, json: bool) -> u8 {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("holdfast demo: cannot find its own program: {error}");
            return 1;
        }
    };
    let stage = Stage { json };
    let work = async {
        match &flags.trace {
            None => story::tell(&program, &stage).await,
            Some(path) => trace::replay(&program, &stage, path, flags.count, flags.speed_up).await,
        }
    };
    match interruptible(work).await {
        None => {
            stage.say("interrupted; everything that was started is gone");
            130
        }
        Some(Ok(summary)) => {
            if json {
                println!("{summary}");
            }
            0
        }
        Some(Err(error)) => {
            if json {
                println!("{}", serde_json::json!({ "ok": false, "error": error.to_string() }));
            }
            eprintln!("holdfast demo: {error}");
            1
        }
    }
}

/// Runs `work` until it ends, or until SIGINT or SIGTERM: then it is dropped, which ends what it started.
pub(crate) async fn interruptible<T>(work: impl Future<Output = T>) -> Option<T> {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return Some(work.await);
    };
    tokio::select! {
        done = work => Some(done),
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
    }
}

/// Where the demo speaks: to people, or with `--json` only in its last line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stage {
    json: bool,
}

impl Stage {
    /// Says a line to people.
    pub(crate) fn say(&self, line: &str) {
        if !self.json {
            // A closed pipe must not end the demo before it has cleaned up.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    }
}

/// The three nodes of the demo.
pub(crate) fn three_zones() -> [LocalSpec; 3] {
    [
        LocalSpec::new("a1", "a", "8xa100"),
        LocalSpec::new("b1", "b", "8xh100"),
        LocalSpec::new("c1", "c", "8xrtx4090"),
    ]
}

/// Asks every 100 ms until `found` answers, at most for `within`.
///
/// # Errors
/// [`DemoError::Late`] when it never does. A failing question is asked again: a cluster that elects answers soon.
pub(crate) async fn until<T>(
    cluster: &LocalCluster,
    arguments: &[&str],
    what: &str,
    within: Duration,
    mut found: impl FnMut(&Value) -> Option<T>,
) -> Result<T, DemoError> {
    let asking = async {
        loop {
            if let Ok(answer) = cluster.json(arguments).await
                && let Some(value) = found(&answer)
            {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(within, asking).await.map_err(|_| DemoError::Late {
        what: what.to_owned(),
        within,
    })
}

/// All events so far, in order.
///
/// # Errors
/// [`LocalError`] when they cannot be read.
pub(crate) async fn events(cluster: &LocalCluster) -> Result<Vec<Value>, LocalError> {
    Ok(events_of(&cluster.json(&["events", "--after", "0"]).await?))
}

/// The events that `holdfast events --json` printed.
pub(crate) fn events_of(listed: &Value) -> Vec<Value> {
    listed.as_array().cloned().unwrap_or_default()
}
