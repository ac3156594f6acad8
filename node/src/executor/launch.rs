//! Starting a supervisor for an attempt.
//!
//! Called by the executor's own thread (never by a tokio worker). The folder of an attempt is made once and claimed
//! once, so a launch that is repeated, after a crash in the middle too, finds what the first one did. The rule: the
//! same attempt is never started twice on this node.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use holdfast_storage::planted;

use super::attach::{AttachError, Found, attach};
use super::supervisor::record::{self, CLAIM_FILE, SPEC_FILE};
use super::supervisor::spec::{Spec, SpecError};

/// Name of the file that takes what a supervisor has to complain about.
const COMPLAINTS_FILE: &str = "supervisor.log";
/// How much of it an error repeats.
const COMPLAINTS_SHOWN: usize = 2_000;

/// Starts supervisors below one folder.
#[derive(Debug, Clone)]
pub struct Launcher {
    program: PathBuf,
    folder: PathBuf,
}

/// Why no supervisor was started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The spec cannot be run.
    #[error("the attempt cannot be started")]
    Spec(#[source] SpecError),
    /// The folder or the spec could not be written.
    #[error("could not prepare the folder {0}")]
    Folder(PathBuf, #[source] io::Error),
    /// The supervisor's program could not be executed.
    #[error("could not start the supervisor {0}")]
    Program(PathBuf, #[source] io::Error),
    /// It started and gave up.
    #[error("the supervisor gave up: {0}")]
    GaveUp(String),
    /// It started and could not be found again.
    #[error("could not attach to the supervisor")]
    Attach(#[source] AttachError),
}

impl Launcher {
    /// `program` is the `holdfast` binary, `folder` the executor's own folder; it is made when absent.
    pub fn new(program: PathBuf, folder: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // The supervisor works from another directory, and is found by this path in its command line.
        Ok(Self {
            program,
            folder: fs::canonicalize(folder)?,
        })
    }

    /// The executor's folder, absolute.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of a run.
    pub fn folder_of(&self, run: &str) -> PathBuf {
        self.folder.join(format!("{FOLDER_PREFIX}{run}"))
    }

    /// Whether no supervisor was ever started for a run. Its folder may exist: preparation comes before the launch.
    pub fn is_unclaimed(&self, run: &str) -> bool {
        !self.folder_of(run).join(CLAIM_FILE).exists()
    }

    /// Starts the attempt and returns once its program executes or is known not to. Launched before: what became of it.
    pub fn launch(&self, spec: &Spec) -> Result<Found, LaunchError> {
        spec.validate().map_err(LaunchError::Spec)?;
        let folder = self.folder_of(&spec.run);
        if self.is_unclaimed(&spec.run) {
            prepare(&folder, spec).map_err(|error| LaunchError::Folder(folder.clone(), error))?;
            self.start(&folder)?;
        }
        attach(&folder).map_err(LaunchError::Attach)
    }

    fn start(&self, folder: &Path) -> Result<(), LaunchError> {
        let complaints = folder.join(COMPLAINTS_FILE);
        let stderr = File::create(&complaints).map_err(|error| LaunchError::Folder(folder.to_owned(), error))?;
        let status = Command::new(&self.program)
            .arg("supervise")
            .arg(folder)
            .env_clear()
            .envs(planted::chosen().map(|plant| (planted::VARIABLE, plant.name())))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .status()
            .map_err(|error| LaunchError::Program(self.program.clone(), error))?;
        // One that was claimed may have run for a moment and died; `attach` finds out.
        if status.success() || folder.join(CLAIM_FILE).exists() && record_exists(folder) {
            return Ok(());
        }
        let mut text = fs::read_to_string(&complaints).unwrap_or_default();
        if text.len() > COMPLAINTS_SHOWN {
            text = text.chars().take(COMPLAINTS_SHOWN).collect();
        }
        Err(LaunchError::GaveUp(if text.is_empty() {
            status.to_string()
        } else {
            text.trim().to_owned()
        }))
    }
}

/// Folders of attempts are named by it and the run.
pub(super) const FOLDER_PREFIX: &str = "lease-";

fn record_exists(folder: &Path) -> bool {
    folder.join(record::IDENTITY_FILE).exists()
}

fn prepare(folder: &Path, spec: &Spec) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        // Made by the preparation, perhaps for everybody; the spec holds the tenant's environment.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        }
        result => result?,
    }
    record::write_atomic(folder, SPEC_FILE, spec)
}
