//! The run: resume, train, save, stop.
//!
//! `main` calls `train` once. The rule kept here: what is printed has happened. `checkpoint step=N` comes after
//! the sync and the rename, `resumed step=N` after the weights of that step are in memory.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::{self, SaFlags, SigAction, SigHandler, SigSet, Signal};

use super::Flags;
use super::checkpoint::{self, CheckpointError};
use super::model::{self, Model};

const WEIGHTS_NAME: &str = "weights.bin";
const VELOCITIES_NAME: &str = "velocities.bin";
const RUN_NAME: &str = "run.json";

/// Longest time that a stop signal waits for the pause between steps.
const PAUSE_SLICE: Duration = Duration::from_millis(20);

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All steps are done; the BLAKE3 of the weights, in hexadecimal.
    Finished {
        /// The digest that was printed.
        hash: String,
    },
    /// It was told to stop after this step, and saved itself.
    Stopped {
        /// The last step done.
        step: u64,
    },
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// Saving or loading failed.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint is of a run with another seed or size.
    #[error("the checkpoint of step {step} belongs to another run: it has {found}, this run has {wanted}")]
    OtherRun {
        /// The checkpoint's step.
        step: u64,
        /// What the checkpoint was made with.
        found: String,
        /// What this run was started with.
        wanted: String,
    },
    /// Standard output is closed.
    #[error("cannot print")]
    Print(#[from] io::Error),
}

static STOPPED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_terminate(_: nix::libc::c_int) {
    STOPPED.store(true, Ordering::Relaxed);
}

/// Whether the work has been told to stop.
pub(crate) struct StopFlag(Source);

enum Source {
    Signal,
    /// Set by a test instead of the signal.
    #[cfg_attr(not(test), allow(dead_code))]
    Flag(Arc<AtomicBool>),
}

impl StopFlag {
    /// Takes SIGTERM from now on.
    pub(crate) fn install() -> Result<Self, nix::Error> {
        let action = SigAction::new(SigHandler::Handler(on_terminate), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { signal::sigaction(Signal::SIGTERM, &action) }?;
        Ok(Self(Source::Signal))
    }

    fn is_set(&self) -> bool {
        match &self.0 {
            Source::Signal => STOPPED.load(Ordering::Relaxed),
            Source::Flag(flag) => flag.load(Ordering::Relaxed),
        }
    }
}

/// Trains until all steps are done or the work is told to stop.
pub(crate) fn train(flags: &Flags, stop: &StopFlag, out: &mut impl Write) -> Result<Ending, RunError> {
    let mut model = Model::new(flags.seed, flags.hidden as usize);
    let place = flags.checkpoint_dir.as_deref();
    let mut saved = resume(flags, place, &mut model)?;
    let mut step = saved.unwrap_or(0);
    match (saved, place) {
        (Some(step), _) => writeln!(out, "resumed step={step}")?,
        (None, Some(_)) => writeln!(out, "started step=0")?,
        (None, None) => writeln!(
            out,
            "started step=0, without checkpoints: HOLDFAST_CHECKPOINT_DIR is not set"
        )?,
    }
    while step < flags.steps && !stop.is_set() {
        step += 1;
        let loss = model.step(step);
        writeln!(out, "step={step} loss={loss:.6}")?;
        if step.is_multiple_of(flags.interval) || step == flags.steps {
            save(flags, place, step, &model, &mut saved, out)?;
        }
        pause(flags.step_ms, stop);
    }
    if step < flags.steps {
        save(flags, place, step, &model, &mut saved, out)?;
        writeln!(out, "stopped step={step}")?;
        return Ok(Ending::Stopped { step });
    }
    let hash = blake3::hash(&model::to_bytes(&model.weights)).to_hex().to_string();
    writeln!(out, "final hash={hash}")?;
    Ok(Ending::Finished { hash })
}

/// What distinguishes this run from another that could have left its checkpoint here.
fn run_text(flags: &Flags) -> String {
    format!("{{\"seed\":{},\"hidden\":{}}}", flags.seed, flags.hidden)
}

fn resume(flags: &Flags, place: Option<&Path>, model: &mut Model) -> Result<Option<u64>, RunError> {
    let Some(place) = place else { return Ok(None) };
    let Some((step, folder)) = checkpoint::newest(place)? else {
        return Ok(None);
    };
    let found = String::from_utf8_lossy(&checkpoint::load(&folder, RUN_NAME)?).into_owned();
    let weights = checkpoint::load(&folder, WEIGHTS_NAME)?;
    let velocities = checkpoint::load(&folder, VELOCITIES_NAME)?;
    let wanted = run_text(flags);
    let fits = model::fill_from(&mut model.weights, &weights) && model::fill_from(&mut model.velocities, &velocities);
    if found != wanted || !fits {
        return Err(RunError::OtherRun { step, found, wanted });
    }
    Ok(Some(step))
}

fn save(
    flags: &Flags,
    place: Option<&Path>,
    step: u64,
    model: &Model,
    saved: &mut Option<u64>,
    out: &mut impl Write,
) -> Result<(), RunError> {
    let Some(place) = place else { return Ok(()) };
    if *saved == Some(step) || step == 0 {
        return Ok(());
    }
    let files = [
        (WEIGHTS_NAME, model::to_bytes(&model.weights)),
        (VELOCITIES_NAME, model::to_bytes(&model.velocities)),
        (RUN_NAME, run_text(flags).into_bytes()),
    ];
    checkpoint::save(place, step, &files)?;
    *saved = Some(step);
    writeln!(out, "checkpoint step={step}")?;
    Ok(())
}

/// Waits between steps, in slices, so that a signal to stop is seen soon.
fn pause(step_ms: u64, stop: &StopFlag) {
    let mut left = Duration::from_millis(step_ms);
    while !left.is_zero() && !stop.is_set() {
        let slice = left.min(PAUSE_SLICE);
        std::thread::sleep(slice);
        left -= slice;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use clap::Parser as _;

    /// Sets the flag once the given line has been printed: a signal that arrives at that very moment.
    struct StopAt {
        flag: Arc<AtomicBool>,
        line: &'static str,
        text: Vec<u8>,
    }

    impl Write for StopAt {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.text.extend_from_slice(bytes);
            if !self.line.is_empty() && String::from_utf8_lossy(&self.text).contains(self.line) {
                self.flag.store(true, Ordering::Relaxed);
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn flags(place: Option<&Path>) -> Flags {
        let mut flags = Flags::parse_from(["trainer", "--steps", "60", "--interval", "20", "--hidden", "8"]);
        flags.checkpoint_dir = place.map(Path::to_owned);
        flags
    }

    fn run(flags: &Flags, stop_at: &'static str) -> (Result<Ending, RunError>, String) {
        let flag = Arc::new(AtomicBool::new(false));
        let mut out = StopAt {
            flag: flag.clone(),
            line: stop_at,
            text: Vec::new(),
        };
        let ending = train(flags, &StopFlag(Source::Flag(flag)), &mut out);
        (ending, String::from_utf8(out.text).unwrap())
    }

    fn undisturbed() -> Ending {
        run(&flags(None), "").0.unwrap()
    }

    #[test]
    fn an_interrupted_run_ends_with_the_same_weights() {
        let place = tempfile::tempdir().unwrap();
        let flags = flags(Some(place.path()));

        let (first, _) = run(&flags, "step=27 ");
        assert_eq!(first.unwrap(), Ending::Stopped { step: 27 });
        let (second, text) = run(&flags, "step=41 ");
        assert_eq!(second.unwrap(), Ending::Stopped { step: 41 });
        assert!(text.starts_with("resumed step=27\nstep=28 "), "{text}");
        let (last, text) = run(&flags, "");
        assert!(text.starts_with("resumed step=41\n"), "{text}");
        assert!(text.contains("checkpoint step=60\nfinal hash="), "{text}");

        assert_eq!(last.unwrap(), undisturbed());
    }

    #[test]
    fn a_truncated_checkpoint_is_passed_over_for_the_one_before() {
        let place = tempfile::tempdir().unwrap();
        let flags = flags(Some(place.path()));
        run(&flags, "checkpoint step=40").0.unwrap();
        let newest = place.path().join("step-40");
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(newest.join(WEIGHTS_NAME))
            .unwrap();
        file.set_len(100).unwrap();

        let (ending, text) = run(&flags, "");

        assert!(text.starts_with("resumed step=20\n"), "{text}");
        assert_eq!(ending.unwrap(), undisturbed());
    }

    #[test]
    fn a_finished_run_started_again_only_prints_its_hash() {
        let place = tempfile::tempdir().unwrap();
        let flags = flags(Some(place.path()));
        let first = run(&flags, "").0.unwrap();
        let (second, text) = run(&flags, "");
        assert_eq!(second.unwrap(), first);
        assert!(text.starts_with("resumed step=60\nfinal hash="), "{text}");
    }

    #[test]
    fn old_checkpoints_are_removed_and_leftovers_do_no_harm() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("step-20.tmp")).unwrap();
        std::fs::write(place.path().join("step-20.tmp/junk"), b"junk").unwrap();
        run(&flags(Some(place.path())), "").0.unwrap();
        let mut names: Vec<_> = std::fs::read_dir(place.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["step-40", "step-60"]);
        assert!(!place.path().join("step-40/junk").exists());
    }

    #[test]
    fn a_checkpoint_of_another_run_is_refused() {
        let place = tempfile::tempdir().unwrap();
        run(&flags(Some(place.path())), "").0.unwrap();
        let mut other = flags(Some(place.path()));
        other.seed = 2;
        assert!(matches!(run(&other, "").0, Err(RunError::OtherRun { step: 60, .. })));
    }
}
